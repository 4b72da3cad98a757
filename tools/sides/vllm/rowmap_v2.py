"""Row map of Model Runner V2 (`vllm.v1.worker.gpu.model_runner`)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from samebits.tools.sides.vllm.batch import Batch


def read(runner: Any, batch: Any) -> Batch:
    """The pass for which `runner.prepare_inputs` has just made `batch` (dummy passes do not go through it)."""
    count = int(batch.num_reqs)
    requests = list(batch.req_ids[:count])
    states = runner.req_states.req_id_to_index
    assert [states[name] for name in requests] == batch.idx_mapping_np[:count].tolist(), (
        "request states have another order"
    )
    lengths = batch.num_scheduled_tokens[:count].tolist()
    edges = batch.query_start_loc_np[: count + 1].tolist()
    assert [b - a for a, b in pairwise(edges)] == lengths, "row borders and scheduled tokens do not agree"
    ends = [
        start + length for start, length in zip(batch.num_computed_tokens_np[:count].tolist(), lengths, strict=True)
    ]
    assert batch.seq_lens[:count].tolist() == ends, "the device has other sequence lengths"
    assert batch.logits_indices.tolist() == [edge - 1 for edge in edges[1:]], (
        "logits are taken from other rows (speculative decoding?)"
    )
    return Batch(
        requests=requests,
        starts=batch.num_computed_tokens_np[:count].tolist(),
        lengths=lengths,
        padded=int(batch.num_tokens_after_padding),
        input_ids_T=batch.input_ids,
        positions_T=batch.positions,
    )
