"""vLLM's CPU attention as a repro runs it: all rows in one call, or one by one as decode steps and pieces are.

Legend: see tools/repro/operators.py.
"""

from __future__ import annotations

import pytest
import torch

from samebits.kernels.adapters.setup import cpu_pieces
from samebits.tools.diff.causes.observation import same_bits
from samebits.tools.repro.operators import vllm_cpu_attention

pytestmark = pytest.mark.vllm


def test_behind_one_tile_of_keys_rows_one_by_one_are_decode_steps_and_a_whole_call_is_not() -> None:
    keys = cpu_pieces.keys_of_a_prefill("vec", 128, 4, int(torch.cpu.get_capabilities()["l2_cache_size"]))
    assert keys is not None
    count, make = 3 * keys // 2, torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(count, heads, 128, generator=make) for heads in (4, 2, 2))
    scalars = {"isa": "vec", "scale": 0.2}
    steps = [
        vllm_cpu_attention({"q": q[i : i + 1], "k": k[: i + 1], "v": v[: i + 1]}, scalars)
        for i in range(keys, count, 16)
    ]
    one_by_one = vllm_cpu_attention({"q": q, "k": k, "v": v}, scalars | {"rows": "one by one"})
    assert same_bits(one_by_one[keys::16], torch.cat(steps))
    last = vllm_cpu_attention({"q": q[-9:], "k": k, "v": v}, scalars | {"rows": "one by one"})
    assert same_bits(last, one_by_one[-9:])
    assert not same_bits(vllm_cpu_attention({"q": q, "k": k, "v": v}, scalars)[keys::16], torch.cat(steps))
