"""Counters of programs that have arrived at a tile, for kernels whose last program folds what all of them stored.

A kernel finds its counters at zero and leaves them at zero, so no launch clears them. Two launches that may run at the
same time must not share them:

- launches on one stream run one after the other and share that stream's counters;
- a launch that a CUDA graph captures runs on whichever stream replays the graph, beside anything. It gets counters of
  its own, from memory outside the graph's pool and never handed out again. A graph does not run beside itself.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

CAPTURED = 1 << 21
"""Counters for captured launches of one GPU, 8 MiB."""
FIRST = 4096
"""Counters of a stream at first; more where a launch needs them."""
LINE = 32
"""Counters of launches begin at whole lines of 128 bytes, so that a kernel is compiled for one alignment."""
_lock = threading.Lock()
_of_stream: dict[tuple[int, int], Tensor] = {}
_captured: dict[int, tuple[Tensor, int]] = {}


def _zeros(device: torch.device, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)


def arrivals(device: torch.device, tiles: int) -> Tensor | None:
    """Zeroed int32 counters [>= tiles] for one launch on the current stream of this GPU (or of the interpreter).

    None where there are none that would be safe: in a capture before the first call outside of one, or when those for
    captures are used up. The caller then takes a form that needs no counters.
    """
    index = device.index or 0
    if device.type != "cuda":
        return _at(device, (index, 0), tiles)
    if not torch.cuda.is_current_stream_capturing():
        if index not in _captured:
            _make_captured(device, index)
        return _at(device, (index, torch._C._cuda_getCurrentRawStream(index)), tiles)
    with _lock:
        if index not in _captured:
            return None
        memory, used = _captured[index]
        if used + tiles > memory.shape[0]:
            return None
        _captured[index] = memory, used + -(-tiles // LINE) * LINE
    return memory[used : used + tiles]


def _make_captured(device: torch.device, index: int) -> None:
    """Zeros that every stream sees: whoever replays a graph must not come before them."""
    memory = _zeros(device, CAPTURED)
    torch.cuda.current_stream(device).synchronize()
    with _lock:
        _captured.setdefault(index, (memory, 0))


def _at(device: torch.device, key: tuple[int, int], tiles: int) -> Tensor:
    """The counters of a stream; larger ones take their place, whose memory the stream frees when it is through."""
    found = _of_stream.get(key)
    if found is None or found.shape[0] < tiles:
        found = _of_stream[key] = _zeros(device, max(FIRST, tiles))
    return found


def used(index: int = 0) -> int:
    """How many counters captured launches of this GPU have taken."""
    return _captured[index][1] if index in _captured else 0


def release(index: int = 0) -> None:
    """Hand the counters of captured launches out again: only where no graph that holds one will be replayed."""
    with _lock:
        if index in _captured:
            _captured[index] = _captured[index][0], 0


def settled() -> bool:
    """Whether every counter is zero, as it is when no launch is under way."""
    every = [*_of_stream.values(), *(memory for memory, _ in _captured.values())]
    return not any(bool(counters.any()) for counters in every)
