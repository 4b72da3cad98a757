"""Launches of Triton kernels that are cheap on the host: a form that ran before goes straight to its compiled kernel.

At every launch Triton binds arguments, specializes on them and looks the kernel up, in Python; an engine waits for that
in every step that no CUDA graph holds. Here the first launch of its kind is Triton's own, and what it compiled is kept
under a key that is nowhere coarser than Triton's. All that is unusual stays Triton's: the interpreter, a pointer that
is missing or not aligned, hooks, debugging, a Triton whose compiled launcher is not known here.
"""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Protocol

import torch
import triton
from triton import knobs

from samebits.kernels.ops.ran import ran

ENTER, EXIT = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
KNOWN = triton.__version__.startswith("3.6.") and hasattr(ENTER, "calls") and hasattr(EXIT, "calls")
"""Whether this is the Triton whose compiled launcher takes its arguments as `Form` gives them, with its own hooks."""
KINDS: dict[tuple[Any, ...], int] = {}
NUMBERS = itertools.count()
BUILTIN: Any = type(len)
MOST_ENCODED = 4096
Grid = tuple[int, int, int]
Tensors = tuple[Any, ...]
Numbers = tuple[int | float, ...]
address, either = torch.Tensor.data_ptr, operator.or_
dtype, kind_of = operator.attrgetter("dtype"), operator.attrgetter("kind")


def kind(value: object) -> Any:
    """All that Triton specializes a number on: its type in C, whether it is 1, whether 16 divides it.

    None: neither a plain float nor a plain int of 64 bits.
    """
    if type(value) is not int:
        return float if type(value) is float else None
    if not -(1 << 63) <= value < 1 << 63:
        return None
    return -(1 << 31) <= value < 1 << 31, value == 1, value % 16 == 0


@lru_cache(maxsize=1 << 14, typed=True)
def kinds(*values: object) -> int:
    """A number for the kinds of these values, in this process; -1: Triton has to look at them."""
    found = tuple(map(kind, values))
    return -1 if None in found else KINDS.setdefault(found, next(NUMBERS))


def watched() -> bool:
    """Whether somebody listens to launches, or asks for other kernels than usual."""
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    if enter is not ENTER or leave is not EXIT or enter.calls or leave.calls:
        return True
    return bool(runtime.debug or knobs.compilation.instrumentation_mode)


class Boxes(Protocol):
    """A tensor as the matrix that a TMA descriptor cuts into boxes of a kind; `descriptor`: as Triton takes it."""

    @property
    def base(self) -> torch.Tensor: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def stride(self) -> int: ...
    @property
    def kind(self) -> Hashable: ...
    def descriptor(self) -> Any: ...


@dataclass(slots=True, frozen=True)
class Ready:
    """A compiled kernel's launcher and what it takes before and after a call's own arguments."""

    launch: Callable[..., None]
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    descriptors: tuple[Any, ...]
    """Triton's word on each descriptor."""
    encoded: dict[Any, tuple[Any, ...]]
    """Place and form of a matrix -> the descriptors' arguments: they hold an address and no data."""

    def arguments(self, boxes: tuple[Boxes, ...]) -> list[Any]:
        """What the launcher takes for descriptors."""
        found: list[Any] = []
        for index, box in enumerate(boxes):
            key = index, box.base.data_ptr(), box.rows, box.columns, box.stride
            known = self.encoded.get(key)
            if known is None:
                if len(self.encoded) >= MOST_ENCODED:
                    self.encoded.clear()
                known = tuple(make_tensordesc_arg()(box.descriptor(), self.descriptors[index]))
                self.encoded[key] = known
            found += known
        return found


class Form:
    """A Triton kernel with its constants and options; its parameters are descriptors, tensors, numbers, constants."""

    def __init__(self, kernel: Any, **constants: Any) -> None:
        self.kernel, self.constants = kernel, constants
        self.direct = KNOWN and isinstance(kernel, triton.runtime.JITFunction)
        self.ready: dict[Any, Ready] = {}
        name = getattr(kernel, "__name__", "a kernel")
        self.past, self.by_triton = f"launched past Triton: {name}", f"launched by Triton: {name}"

    def __call__(self, grid: Grid, tensors: Tensors, numbers: Numbers, boxes: tuple[Boxes, ...] = ()) -> None:
        """Launch on the current device and stream, as Triton does."""
        places: tuple[int, ...] = ()
        of = -1 if not self.direct or watched() or self.kernel.pre_run_hooks else kinds(*numbers)
        if of >= 0:
            try:
                places = tuple(map(address, tensors))
            except TypeError:  # a pointer that is None is a constant to Triton
                of = -1
        if of < 0 or reduce(either, places) & 15:
            self.usual(grid, tensors, numbers, boxes)
            return
        device: int = torch._C._cuda_getDevice()
        key = device, of, *map(dtype, tensors), *map(kind_of, boxes)
        ready = self.ready.get(key)
        if ready is None:
            compiled = self.usual(grid, tensors, numbers, boxes)
            if ready := self.prepare(compiled, len(boxes), len(tensors) + len(numbers)):
                self.ready[key] = ready
            return
        stream = torch._C._cuda_getCurrentRawStream(device)
        first = ready.arguments(boxes) if boxes else ()
        ran(self.past)
        ready.launch(*grid, stream, *ready.before, *first, *places, *numbers, *ready.after)

    def usual(self, grid: Grid, tensors: Tensors, numbers: Numbers, boxes: tuple[Boxes, ...]) -> Any:
        """Triton's own launch; the compiled kernel."""
        ran(self.by_triton)
        return self.kernel[grid](*(box.descriptor() for box in boxes), *tensors, *numbers, **self.constants)

    def prepare(self, compiled: Any, boxes: int, given: int) -> Ready | None:
        """How to launch a compiled kernel; None where it needs memory of its own or its launcher is another."""
        run: Any = getattr(compiled, "run", None)
        scratch = getattr(run, "global_scratch_size", 1), getattr(run, "profile_scratch_size", 1)
        described = tuple(getattr(compiled.metadata, "tensordesc_meta", None) or ()) if compiled else ()
        if scratch != (0, 0) or len(described) != boxes:
            return None
        launch: Any = run.launch if not boxes else inspect.getclosurevars(run.launch).nonlocals.get("launcher")
        if type(launch) is not BUILTIN:
            return None
        # After grid and stream. None: no scratch, and nobody listens.
        asked = compiled.function, run.launch_cooperative_grid, run.launch_pdl
        before = (*asked, None, None, compiled.packed_metadata, None, None, None)
        after = tuple(self.constants[name] for name in self.kernel.arg_names[boxes + given :])
        return Ready(launch, before, after, described, {})


def make_tensordesc_arg() -> Callable[..., list[Any]]:
    """Triton's encoder of a descriptor for its launcher."""
    from triton.backends.nvidia.driver import make_tensordesc_arg as make

    found: Callable[..., list[Any]] = make
    return found
