"""Operator level: every dispatcher call inside the chosen modules, custom operators included."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from samebits.tools.capture.launches import Launches
from samebits.tools.capture.places import Place
from samebits.tools.capture.tensors import leaves, mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from samebits.tools.capture.recorder import Recorder

_ALLOCATE = ("aten.empty", "aten.new_empty", "aten.empty_like", "aten.empty_strided")
_CASTS = ("aten.to.", "aten.type_as")
"""Declared as views, since they may return their input; in inference mode they are not taken apart."""
_NOT_NUMBERS = (
    "aten._unsafe_view.default",
    "aten.detach.default",
    "aten.lift_fresh.default",
    "aten.alias.default",
    "aten.set_",
)


@dataclass(slots=True, frozen=True)
class Kind:
    """What an operator's schema says."""

    name: str
    skip: str
    """Why it is not tapped; "" when it is."""
    written: frozenset[str]
    """Arguments it writes."""
    returned: frozenset[str]
    """Of those, the ones it returns (in-place and out= operators)."""
    arguments: tuple[str, ...]
    """Positional argument names."""
    allocates: bool


@cache
def kind_of(func: Any) -> Kind:
    """Read the schema once."""
    schema = func._schema
    name = str(func)
    written = {
        a.name: set(a.alias_info.before_set)
        for a in schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
    }
    sets = [set(r.alias_info.before_set) for r in schema.returns if r.alias_info is not None]
    returned = frozenset(n for n, s in written.items() if s and any(s & other for other in sets))
    views = bool(schema.returns) and not written and all(r.alias_info is not None for r in schema.returns)
    views = views and not name.startswith(_CASTS)
    allocates = name.startswith(_ALLOCATE)
    skip = ""
    if views or name.startswith(_NOT_NUMBERS):
        skip = "views move no bits"
    elif allocates:
        skip = "allocations hold no value"
    elif not written and not any("Tensor" in str(r.type) for r in schema.returns):
        skip = "returns no tensor"
    return Kind(name, skip, frozenset(written), returned, tuple(a.name for a in schema.arguments), allocates)


def _text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The non-tensor arguments, written out."""

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return "T"
        if isinstance(value, (tuple, list)):
            return [plain(part) for part in value]
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items()}
        return (
            value
            if isinstance(value, (int, float, bool, str, type(None)))
            else str(value)
            if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format))
            else type(value).__name__
        )

    return repr((plain(args), plain(kwargs)))


class OperatorMode(TorchDispatchMode):
    """Active while the innermost chosen module runs; asks the recorder to take what goes in and comes out."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.launches = Launches(recorder, self)
        self.fresh: dict[int, torch.UntypedStorage] = {}
        """Storages that were allocated and never written: no value yet. Held, so that no address returns."""
        self.skipped: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self.recorder
        frame = recorder.frame
        if recorder.busy or recorder.sink.running is None or frame is None:
            return func(*args, **kwargs)
        kind = kind_of(func)
        if kind.skip:
            out = func(*args, **kwargs)
            self.skipped[kind.name, kind.skip] += 1
            if kind.allocates:
                self.fresh[out.untyped_storage().data_ptr()] = out.untyped_storage()
            return out
        return self._call(func, kind, args, kwargs)

    def next_index(self, op: str) -> tuple[str, int, int]:
        """(module, call, index) of the next call of an operator in the running module call."""
        frame, running = self.recorder.frame, self.recorder.sink.running
        assert frame is not None
        assert running is not None
        key = (frame.path, frame.call, op)
        index = running.operators.get(key, 0)
        running.operators[key] = index + 1
        return frame.path, frame.call, index

    def touched(self, tensor: torch.Tensor) -> None:
        """Its storage holds a value now."""
        self.fresh.pop(tensor.untyped_storage().data_ptr(), None)

    def is_fresh(self, tensor: torch.Tensor) -> bool:
        """Allocated and never written."""
        return tensor.untyped_storage().data_ptr() in self.fresh

    def _call(self, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder = self.recorder
        module, call, index = self.next_index(kind.name)

        def place(port: str) -> Place:
            return Place(module, port, call, kind.name, index)

        record = recorder.records
        with recorder.quiet():
            args, kwargs = self._inputs(kind, place, args, kwargs, record)
            again = recorder.replays.prepare_operator(recorder, kind, args, kwargs) if record else None
        out = func(*args, **kwargs)
        with recorder.quiet():
            written = list(self.written(kind, args, kwargs))
            for _, tensor in written:
                self.touched(tensor)
            for _, tensor in leaves(out):
                self.touched(tensor)
            if again is not None:
                recorder.replays.operator(
                    recorder, place("out0").site, func, again, out, [tensor for _, tensor in written]
                )
            ports = iter(f"out{i}" for i, _ in enumerate(leaves(out)))
            in_place = bool(kind.returned)
            out = mapped(
                out, lambda t: recorder.sink.take(place(next(ports)), t, kind.name, record=record, in_place=in_place)
            )
            for name, tensor in written:
                if name.split(".")[0] not in kind.returned:
                    recorder.sink.take(place(f"mut.{name}"), tensor, kind.name, record=record, in_place=True)
        return out

    def _inputs(
        self, kind: Kind, place: Any, args: tuple[Any, ...], kwargs: dict[str, Any], record: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        recorder = self.recorder
        ports = iter([f"in{i}" for i, _ in enumerate(leaves(args))] + [f"in.{name}" for name, _ in leaves(kwargs)])

        def taker(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
            def take(tensor: torch.Tensor) -> torch.Tensor:
                port = next(ports)
                if self.is_fresh(tensor):
                    return tensor
                return recorder.sink.take(place(port), tensor, kind.name, record=record, in_place=name in kind.written)

            return take

        new_args = tuple(mapped(arg, taker(name)) for name, arg in zip(kind.arguments, args, strict=False))
        new_kwargs = {name: mapped(arg, taker(name)) for name, arg in kwargs.items()}
        if record:
            recorder.sink.take_text(place("scalars"), _text(args, kwargs), kind.name)
        return new_args, new_kwargs

    @staticmethod
    def written(kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, arg in (*zip(kind.arguments, args, strict=False), *kwargs.items()):
            if name in kind.written:
                yield from leaves(arg, name)
