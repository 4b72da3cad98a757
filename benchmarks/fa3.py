"""vLLM's FlashAttention 3, called as vLLM calls it: from an installed vLLM, or from its library alone (--fa3 FILE)."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import torch
from torch import Tensor


def load(library: Path | None) -> bool:
    """Whether FlashAttention 3 can be called from now on."""
    if library is not None:
        torch.ops.load_library(str(library))
        return True
    if importlib.util.find_spec("vllm") is None:
        return False
    importlib.import_module("vllm.vllm_flash_attn._vllm_fa3_C")
    return True


class Call:
    """One prepared call: like vLLM, the schedule is computed once per step, ahead of the layers. splits 0: free."""

    def __init__(
        self, q: Tensor, key_heads: int, cu: Tensor, lens: Tensor, longest: tuple[int, int], page: int, splits: int = 0
    ) -> None:
        self.splits, self.cu, self.lens, self.longest = splits, cu, lens, longest
        heads, size = q.shape[1:]
        self.out = torch.empty_like(q)
        self.schedule = torch.ops._vllm_fa3_C.get_scheduler_metadata(
            len(lens),
            *longest,
            heads,
            key_heads,
            size,
            size,
            q.dtype,
            lens,
            cu,
            None,
            None,
            None,
            None,
            page,
            0,
            True,
            -1,
            -1,
            False,
            splits,
            None,
            0,
        )

    def __call__(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, scale: float) -> Tensor:
        nothing = (None,) * 7
        torch.ops._vllm_fa3_C.fwd(
            q,
            k_cache,
            v_cache,
            None,
            None,
            None,
            self.out,
            self.cu,
            None,
            None,
            None,
            self.lens,
            *self.longest,
            table,
            None,
            *nothing,
            scale,
            True,
            -1,
            -1,
            0.0,
            True,
            self.schedule,
            self.splits,
            None,
            0,
            None,
            1,
            0,
            None,
        )
        return self.out
