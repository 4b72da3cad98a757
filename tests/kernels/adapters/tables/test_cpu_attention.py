"""vLLM's CPU attention itself: where a prefill leaves a decode step's bits, and that pieces never do.

Legend: T token rows, H query heads, G heads of keys, E head size.
"""

from __future__ import annotations

import pytest
import torch

from samebits.kernels.adapters.setup import cpu_pieces
from samebits.kernels.adapters.tables.pack import Pack

pytestmark = pytest.mark.vllm
HEADS, KV_HEADS = 4, 2


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The table's operator over one sequence."""
    from samebits.kernels.adapters.tables.vllm_cpu import Attention

    out: torch.Tensor = Attention.apply(q, k, v, q.shape[-1] ** -0.5, Pack(torch.arange(len(q)), (0, len(q))))  # type: ignore[no-untyped-call]
    return out


def differing(a_THE: torch.Tensor, b_THE: torch.Tensor) -> list[int]:
    kind = torch.int32 if a_THE.dtype == torch.float32 else torch.int16
    return (a_THE.view(kind) != b_THE.view(kind)).flatten(1).any(1).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(("size", "dtype"), [(128, torch.float32), (256, torch.bfloat16), (80, torch.float32)])
def test_pieces_have_the_bits_of_decode_steps_and_a_whole_prefill_leaves_them_behind_its_tile(
    size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()
    isa = _get_attn_isa(dtype, 128, size, "auto")
    keys = cpu_pieces.keys_of_a_prefill(isa, size, dtype.itemsize, int(torch.cpu.get_capabilities()["l2_cache_size"]))
    if keys is None:
        pytest.skip(f"nothing is known here about the kernel {isa}")
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2 * keys, n, size, generator=make).to(dtype) for n in (HEADS, KV_HEADS, KV_HEADS))
    pieces = attend(2 * q, k, v)
    monkeypatch.setattr(cpu_pieces, "most_rows", lambda *_: 1)
    steps = attend(2 * q, k, v)
    monkeypatch.setattr(cpu_pieces, "most_rows", lambda *_: 1 << 30)
    prefill = attend(2 * q, k, v)
    assert differing(pieces, steps) == []
    other = differing(prefill, steps)
    assert other, "the control did not differ: this kernel no longer follows its queries"
    assert other[0] >= keys
    if dtype == torch.float32:
        assert other[0] < keys + 32
