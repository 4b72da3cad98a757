"""Records a trace while a side's module runs: a dispatch mode that sees every operator below autograd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from samebits.tools.repro.encode import encode
from samebits.tools.repro.storage import Snapshot, digest
from samebits.tools.schema.artifacts.trace import Call, Port, Trace, Value, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TRANSPARENT = ("vllm",)
"""Namespaces whose operators are Python that calls other operators (and reads state no trace can hold): looked into."""


class TraceRecorder(TorchDispatchMode):
    """Use as a context manager around one module call; then `finish()`.

    Tensors seen are kept alive until `finish`, so that no address is used twice: record one module, not a model.

    Args:
        where: the module path (with `@CALL`) that runs now; "" when not known.
        labels: names of tensors known beforehand (parameters), by data_ptr.
        imports: Python modules that define the operators.
        rebuild: for an operator whose argument is a handle of packed weights, what remakes it (see handles.py).
    """

    def __init__(
        self,
        where: Callable[[], str] = lambda: "",
        labels: Mapping[int, str] | None = None,
        imports: Sequence[str] = (),
        rebuild: Mapping[str, Callable[[TraceRecorder, tuple[Any, ...]], tuple[Any, ...]]] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.where = where
        self.labels = dict(labels or {})
        self.imports = tuple(imports)
        self.rebuild = dict(rebuild or {})
        self.values: list[Value] = []
        self.calls: list[Call] = []
        self.notes: list[str] = []
        self.ports: dict[str, Port] = {}
        self.inference = torch.is_inference_mode_enabled()
        self._alive: list[torch.Tensor] = []
        self._by_object: dict[int, int] = {}
        self._storage: dict[int, int] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._scalars: dict[int, int] = {}
        self._next_scalar = 0
        self._blank: set[int] = set()
        """Storages that nothing has written yet: their bytes are not a result."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in TRANSPARENT:
            with self:
                return func(*args, **(kwargs or {}))
        name = str(func)
        shown = self.rebuild[name](self, args) if name in self.rebuild else args
        call = self.before(func, shown, kwargs or {})
        result = func(*args, **(kwargs or {}))
        self.after(call, result)
        return result

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Name the arguments of a call while they still hold what the operator will read."""
        module, name = self.where(), str(func)
        index = self._counts.get((module, name), 0)
        self._counts[module, name] = index + 1
        shown = tuple(encode(arg, self.named, self.number) for arg in args)
        keyed = {key: encode(arg, self.named, self.number) for key, arg in kwargs.items()}
        wrote = [
            arg
            for place, spec in enumerate(func._schema.arguments)
            if spec.alias_info is not None
            and spec.alias_info.is_write
            and isinstance(arg := args[place] if place < len(args) else kwargs.get(spec.name), torch.Tensor)
        ]
        return {"op": name, "args": shown, "kwargs": keyed, "module": module, "index": index, "wrote": wrote}

    def after(self, call: dict[str, Any], result: Any) -> None:
        """Number the results and append the call."""
        several = isinstance(result, tuple | list)
        as_list = isinstance(result, list)
        results = [result] if as_list or not several else list(result)
        outs = tuple(self.result(item) for item in results) if result is not None else ()
        written: list[torch.Tensor] = call.pop("wrote")
        touched = [*written, *(item for item in flat(results) if isinstance(item, torch.Tensor))]
        if "empty" in call["op"]:
            self._blank.update(tensor.untyped_storage()._cdata for tensor in touched)
        self._blank.difference_update(tensor.untyped_storage()._cdata for tensor in written)
        digests = {
            str(self._by_object[id(tensor)]): digest(tensor)
            for tensor in touched
            if tensor.untyped_storage()._cdata not in self._blank and not numbers(call["args"], "scalar")
        }
        wrote = tuple(self._by_object[id(tensor)] for tensor in written)
        self.calls.append(Call(outs=outs, wrote=wrote, digests=digests, **call))

    def result(self, item: Any) -> Any:
        """What a result is called."""
        if isinstance(item, torch.Tensor):
            known = self._by_object.get(id(item))
            return {
                "value": known if known is not None else self.add(item, made=True, offset=int(item.storage_offset()))
            }
        if isinstance(item, list | tuple):
            return [self.result(one) for one in item]
        if isinstance(item, int) and not isinstance(item, bool) and abs(item) > 1 << 32:
            return self.handle(item)
        return None

    def handle(self, item: int) -> dict[str, int]:
        """A number that means something in this process alone (an address): later arguments refer to it."""
        self._scalars[item] = self._next_scalar
        self._next_scalar += 1
        return {"scalar": self._scalars[item]}

    def number(self, item: int) -> Any:
        """An int argument: itself, or the handle it is."""
        return {"scalar": self._scalars[item]} if item in self._scalars else item

    def named(self, tensor: torch.Tensor) -> dict[str, int]:
        """The value of a tensor argument; new ones are inputs, snapshot now."""
        known = self._by_object.get(id(tensor))
        if known is not None:
            return {"value": known}
        key = tensor.untyped_storage()._cdata
        number = self._storage.get(key)
        if number is not None and number not in self._snapshots:
            return {"value": self.view_of_made(tensor, number)}
        if number is None:
            number = len(self._storage)
            self._storage[key] = number
            self._snapshots[number] = Snapshot.of(tensor)
        offset = self._snapshots[number].offset(tensor)
        if offset is None:
            self.notes.append(
                f"value {len(self.values)}: another part of a large storage, recorded apart; no aliasing kept"
            )
            number = -1 - len(self._storage)
            self._storage[number] = number = len(self._storage)
            self._snapshots[number] = Snapshot.of(tensor)
            offset = self._snapshots[number].offset(tensor)
            assert offset is not None
            self._alive.append(tensor)
        return {"value": self.add(tensor, made=False, offset=offset, storage=number)}

    def view_of_made(self, tensor: torch.Tensor, number: int) -> int:
        """A tensor made outside the dispatcher over memory that a recorded call made: an explicit view of it."""
        base = next(value.id for value in self.values if value.storage == number)
        source = self._alive_of(base)
        if source.dtype != tensor.dtype:
            raise TypeError(
                "a tensor reinterprets the bytes of another one outside the dispatcher; this cannot be recorded"
            )
        view = self.add(tensor, made=True, offset=int(tensor.storage_offset()))
        args = ({"value": base}, list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
        self.calls.append(
            Call(op="aten.as_strided.default", args=args, outs=({"value": view},), module=self.where(), index=-1)
        )
        return view

    def add(self, tensor: torch.Tensor, *, made: bool, offset: int, storage: int | None = None) -> int:
        """Register a tensor object under a new value number."""
        number = len(self.values)
        if storage is None:
            storage = self._storage.setdefault(tensor.untyped_storage()._cdata, len(self._storage))
        self.values.append(
            Value(
                id=number, storage=storage, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape),
                strides=tuple(tensor.stride()), offset=offset, made=made, label=self.labels.get(tensor.data_ptr(), ""),
            )
        )  # fmt: skip
        self._by_object[id(tensor)] = number
        self._alive.append(tensor)
        return number

    def _alive_of(self, number: int) -> torch.Tensor:
        return next(tensor for tensor in self._alive if self._by_object.get(id(tensor)) == number)

    def find(self, tensor: torch.Tensor) -> int | None:
        """The value number of a tensor object that a recorded call read or made."""
        return self._by_object.get(id(tensor))

    def mark(self, site: str, tensor: torch.Tensor) -> None:
        """Remember where a site of a module call is: call it in the module's hooks, with the mode on, for each tensor.

        Args:
            site: string form; `:in...` ports are taken before the module runs, `:out...` ports after.
            tensor: the argument or result itself, not a copy.
        """
        after = site.rpartition(":")[2].startswith("out")
        self.ports[site] = Port(value=self.named(tensor)["value"], place=len(self.calls) - after)

    def finish(
        self, rows: torch.Tensor | None = None, head: torch.Tensor | None = None, batch: tuple[int, int] | None = None
    ) -> tuple[Trace, dict[str, torch.Tensor]]:
        """The trace and its tensors; lets go of everything.

        Args:
            rows: int32 [T, 2], (sequence, position) of the pass's token rows.
            head: int64 [R], rows that reach the head.
            batch: (B, L) of a padded pass.
        """
        tensors: dict[str, torch.Tensor] = {}
        storages = []
        for number, snapshot in self._snapshots.items():
            storages.append(snapshot.store(number, tensors))
        if rows is not None:
            tensors["pass.rows"] = rows.to(torch.int32).cpu().contiguous()
        if head is not None:
            tensors["pass.head"] = head.to(torch.int64).cpu().contiguous()
        trace = Trace(
            imports=self.imports, inference=self.inference, values=tuple(self.values), storages=tuple(storages),
            calls=tuple(self.calls), ports=self.ports, batch=batch, notes=tuple(self.notes),
        )  # fmt: skip
        self._alive.clear()
        self._by_object.clear()
        return trace, tensors


def flat(items: Any) -> list[Any]:
    """Nested lists and tuples, flattened."""
    if not isinstance(items, list | tuple):
        return [items]
    return [one for item in items for one in flat(item)]
