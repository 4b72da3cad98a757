"""The engine's attention in pieces: which passes are laid out anew, and what is kept of the requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits.kernels.adapters.tables.vllm_hooks import match
from samebits.kernels.adapters.vllm import cpu_pieces

pytestmark = pytest.mark.vllm
BUILDER: Any = SimpleNamespace(
    isa="vec", num_heads=4, num_kv_heads=2, is_cross_attention=False, is_encoder_only_attention=False
)


def common(rows: list[int], before: list[int], **given: Any) -> Any:
    from vllm.v1.attention.backend import CommonAttentionMetadata

    starts = torch.tensor([0, *torch.tensor(rows).cumsum(0).tolist()], dtype=torch.int32)
    lengths = torch.tensor([a + b for a, b in zip(rows, before, strict=True)], dtype=torch.int32)
    fields = {
        "query_start_loc": starts,
        "query_start_loc_cpu": starts,
        "seq_lens": lengths,
        "num_reqs": len(rows),
        "num_actual_tokens": sum(rows),
        "max_query_len": max(rows),
        "max_seq_len": int(lengths.max()),
        "block_table_tensor": torch.arange(len(rows), dtype=torch.int32)[:, None],
        "slot_mapping": torch.arange(sum(rows)),
    }
    return CommonAttentionMetadata(**(fields | given))


def test_the_hook_and_the_fields_are_there() -> None:
    match(cpu_pieces.HOOKS)
    assert all(hasattr(common([1], [0]), name) for name in cpu_pieces.COMMON)


def test_a_pass_with_a_prefill_is_laid_out_in_pieces() -> None:
    found = cpu_pieces.in_pieces(BUILDER, common([1, 9], [40, 3]))
    assert found.query_start_loc.tolist() == [0, 1, 5, 9, 10]
    assert found.seq_lens.tolist() == [41, 7, 11, 12]
    assert found.block_table_tensor[:, 0].tolist() == [0, 1, 1, 1]
    assert (found.num_reqs, found.max_query_len, found.num_actual_tokens) == (4, 4, 10)


@pytest.mark.parametrize(
    ("builder", "rows", "given"),
    [
        ({}, [1, 1], {}),
        ({}, [4, 1], {}),
        ({}, [9], {"causal": False}),
        ({"is_cross_attention": True}, [9], {}),
        ({"is_encoder_only_attention": True}, [9], {}),
    ],
)
def test_other_passes_stay_as_they_are(builder: dict[str, bool], rows: list[int], given: dict[str, bool]) -> None:
    whole = common(rows, [5] * len(rows), **given)
    assert cpu_pieces.in_pieces(SimpleNamespace(**(vars(BUILDER) | builder)), whole) is whole


def test_the_metadata_keeps_what_the_requests_were(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

    from samebits.tools.sides.vllm.rowmap_v1 import first_metadata

    def build(self: Any, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        return SimpleNamespace(
            query_start_loc=common_attn_metadata.query_start_loc, seq_lens=common_attn_metadata.seq_lens
        )

    monkeypatch.setattr(CPUAttentionMetadataBuilder, "build", build)
    monkeypatch.setenv("SAMEBITS_CPU_ATTN_PIECES", "0")
    cpu_pieces.register()
    assert not cpu_pieces.installed()
    monkeypatch.setenv("SAMEBITS_CPU_ATTN_PIECES", "1")
    cpu_pieces.register()
    cpu_pieces.register()
    assert cpu_pieces.installed()
    whole = common([6], [0])
    made = CPUAttentionMetadataBuilder.build(BUILDER, 0, whole)
    assert made.query_start_loc.tolist() == [0, 4, 6]
    assert first_metadata({"layer": made}) is whole
    step = CPUAttentionMetadataBuilder.build(BUILDER, 0, common([1], [5]))
    assert first_metadata({"layer": step}) is step
