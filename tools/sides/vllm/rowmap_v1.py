"""Row map of the V1 model runner (`vllm.v1.worker.gpu_model_runner`, CPU included)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from samebits.kernels.adapters.vllm.cpu_pieces import WHOLE
from samebits.tools.sides.vllm.batch import Batch

if TYPE_CHECKING:
    import torch


def read(runner: Any, input_ids_T: torch.Tensor | None, positions_T: torch.Tensor) -> Batch:
    """The pass that `runner._model_forward` was just asked for. Everything is copied: the runner reuses its buffers."""
    assert input_ids_T is not None, "a pass without token ids (embeddings as input) has no row map"
    batch = runner.input_batch
    count = int(batch.num_reqs)
    edges = runner.query_start_loc.np[: count + 1].tolist()
    return Batch(
        requests=list(batch.req_ids[:count]),
        starts=batch.num_computed_tokens_cpu[:count].tolist(),
        lengths=[b - a for a, b in pairwise(edges)],
        padded=int(input_ids_T.shape[0]),
        input_ids_T=input_ids_T,
        positions_T=positions_T,
    )


def metadata() -> Any:
    """Attention metadata of the running forward pass; None when the backend keeps none."""
    from vllm.forward_context import get_forward_context

    return first_metadata(get_forward_context().attn_metadata)


def first_metadata(by_layer: Any) -> Any:
    """The metadata of the first layer that has row borders and lengths."""
    for one in (by_layer or {}).values() if isinstance(by_layer, dict) else ():
        if hasattr(one, "query_start_loc") and hasattr(one, "seq_lens"):
            # Laid out in pieces (kernels/adapters/vllm/cpu_pieces.py), it says what the requests were.
            return getattr(one, WHOLE, one)
    return None
