"""Triton launches: `JITFunction.run` is wrapped while a recorder runs, so each kernel launch is seen as an operator.

The operator's name is the kernel's. Which arguments a kernel writes is not declared anywhere: those whose bytes
changed are recorded as `mut.NAME`, and those that were allocated and not yet written. Launches inside the autotuner's
timing are let through. In interpreter mode (TRITON_INTERPRET=1) the interpreter's `run` is wrapped in the same way.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.capture.places import Place
from samebits.tools.diff.digest import digest_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.capture.operators import OperatorMode
    from samebits.tools.capture.recorder import Recorder

LIMIT = 256 << 20
"""Bytes: a larger argument (a paged KV cache) is neither digested nor copied."""


class Launches:
    """Puts the wrapper in and takes it out."""

    def __init__(self, recorder: Recorder, mode: OperatorMode) -> None:
        self.recorder, self.mode = recorder, mode
        self._undo: list[Callable[[], None]] = []
        self._timing = 0

    def install(self) -> None:
        """Wrap; does nothing without Triton."""
        try:
            from triton.runtime.autotuner import Autotuner
            from triton.runtime.interpreter import InterpretedFunction
            from triton.runtime.jit import JITFunction
        except ImportError:
            return
        for owner in (JITFunction, InterpretedFunction):
            self._wrap(owner, "run", self._run)
        self._wrap(Autotuner, "_bench", self._bench)

    def remove(self) -> None:
        """Put the originals back."""
        while self._undo:
            self._undo.pop()()

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = owner.__dict__[name]

        @wraps(original)
        def wrapper(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            return around(original, kernel, *args, **kwargs)

        setattr(owner, name, wrapper)
        self._undo.append(lambda: setattr(owner, name, original))

    def _bench(self, original: Callable[..., Any], tuner: Any, *args: Any, **kwargs: Any) -> Any:
        self._timing += 1
        try:
            return original(tuner, *args, **kwargs)
        finally:
            self._timing -= 1

    def _run(self, original: Callable[..., Any], kernel: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self.recorder
        frame = recorder.frame
        seen = frame is not None and frame.active and recorder.sink.running is not None
        if not seen or recorder.busy or self._timing or kwargs.get("warmup"):
            return original(kernel, *args, **kwargs)
        return self._launch(original, kernel, args, kwargs)

    def _launch(self, original: Callable[..., Any], kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder, mode = self.recorder, self.mode
        name = f"triton.{kernel.fn.__name__}"
        module, call, index = mode.next_index(name)
        record = recorder.records
        bound = dict(zip(kernel.arg_names, args, strict=False)) | {
            k: v for k, v in kwargs.items() if k in kernel.arg_names
        }

        def place(port: str) -> Place:
            return Place(module, port, call, name, index)

        tensors = {key: value for key, value in bound.items() if isinstance(value, torch.Tensor)}
        before: dict[str, torch.Tensor | None] = {}
        with recorder.quiet():
            for key, tensor in tensors.items():
                fresh = mode.is_fresh(tensor)
                before[key] = None if fresh or tensor.nbytes > LIMIT else digest_whole(tensor)
                if not fresh:
                    recorder.sink.take(place(f"in.{key}"), tensor, name, record=record, in_place=True)
            if record:
                scalars = {
                    key: value for key, value in bound.items() if isinstance(value, (int, float, bool, str, type(None)))
                }
                recorder.sink.take_text(place("scalars"), repr(scalars), name)
            again = recorder.replays.prepare_launch(recorder, args, kwargs) if record else None
        result = original(kernel, *args, **kwargs)
        with recorder.quiet():
            if again is not None:
                recorder.replays.launch(recorder, place("out0").site, original, kernel, again, (args, kwargs))
            for key, tensor in tensors.items():
                was = before[key]
                if tensor.nbytes > LIMIT or (was is not None and torch.equal(digest_whole(tensor), was)):
                    continue
                mode.touched(tensor)
                recorder.sink.take(place(f"mut.{key}"), tensor, name, record=record, in_place=True)
        return result
