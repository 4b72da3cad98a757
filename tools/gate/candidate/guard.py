"""Guard bands: inputs and everything a candidate allocates lie between bands of a known byte, and start out poisoned.

Sees writes just beside a tensor (band of 4 KiB on either side), changed inputs, and elements that were never written. A
write further away
can still crash the process, which is red as well, or hit foreign memory unseen; a GPU's own checker goes further.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode

from samebits.kernels.ops.register import BODIES

BAND = 4096
MARK = 0xA5
POISON = {torch.bfloat16: 0x7FB5, torch.float16: 0x7DB5, torch.float32: 0x7FB5B5B5}
"""Bits of a NaN that no arithmetic makes."""
KEYS = {"cpu": torch._C.DispatchKey.CPU, "cuda": torch._C.DispatchKey.CUDA}
VIEWS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
FILLED = ("zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "new_zeros", "new_ones", "new_full")


class Guard:
    """All guarded memory of one call."""

    def __init__(self) -> None:
        self.arenas: list[tuple[torch.Tensor, int, str]] = []

    def like(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """Uninitialised memory of the shape, strides and dtype of x, between two bands."""
        span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
        size = -(-span * x.dtype.itemsize // 256) * 256
        arena = torch.full((BAND + size + BAND,), MARK, dtype=torch.uint8, device=x.device)
        self.arenas.append((arena, BAND + span * x.dtype.itemsize, what))
        whole = arena[BAND : BAND + size].view(x.dtype)
        return torch.as_strided(whole, x.shape, x.stride(), whole.storage_offset())

    def copy(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """x itself, between two bands."""
        return self.like(x, what).copy_(x)

    def broken(self) -> str | None:
        """Which band was written to; None: all are whole."""
        for arena, end, what in self.arenas:
            if not bool((arena[:BAND] == MARK).all()):
                return f"memory in front of {what} was written to"
            if not bool((arena[end:] == MARK).all()):
                return f"memory behind {what} was written to"
        return None


class GuardedAllocations(TorchDispatchMode):
    """While active, PyTorch's allocations (also those of C++ code) come from a Guard and start out poisoned."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.guard = guard

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's hook: False keeps torch.compile's machinery, which is slow to import, out of plain calls."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Allocate twice: once as asked, for the form, once guarded. Operators of others are entered with the mode
        still on.
        """
        if func.namespace not in ("aten", "prim", "prims"):
            with self:
                return body_of(func, args)(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name not in EMPTY + FILLED or not isinstance(result, torch.Tensor) or result.layout != torch.strided:
            return result
        guarded = self.guard.like(result, f"a tensor {tuple(result.shape)} of the candidate's own")
        if name in FILLED:
            return guarded.copy_(result)
        if result.dtype in POISON and result.numel():
            guarded.view(VIEWS[result.dtype]).fill_(POISON[result.dtype])
        return guarded


def body_of(func: Any, args: Any) -> Callable[..., Any]:
    """The code behind an operator that is not PyTorch's own: its Python function, where it is one of the library's or a
    custom_op, else the kernel of the device (C++).
    """
    name = func._schema.name
    if name in BODIES:
        return BODIES[name]
    if name in OPDEFS:
        return OPDEFS[name]._init_fn  # type: ignore[no-any-return]
    device = next((a.device.type for a in args if isinstance(a, torch.Tensor)), "cpu")
    return functools.partial(func._op_dk, KEYS[device])


def unwritten(x: torch.Tensor) -> int:
    """Elements that still hold the poison."""
    return int((x.view(VIEWS[x.dtype]) == POISON[x.dtype]).sum()) if x.dtype in POISON and x.numel() else 0
