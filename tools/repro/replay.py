"""Runs a trace again: all of it, or the calls that lead to one value."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.repro.encode import decode, operator
from samebits.tools.repro.record import TraceRecorder
from samebits.tools.repro.storage import digest, restore, tensor_of
from samebits.tools.schema.artifacts.trace import numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from samebits.tools.schema.artifacts.trace import Call, Port, Trace


@dataclass(slots=True)
class Replayed:
    """What a replay made."""

    values: dict[int, torch.Tensor]
    wrong: list[str] = field(default_factory=list)
    """Sites of calls whose results did not have the recorded bits, in order."""


def replay(
    trace: Trace,
    tensors: dict[str, torch.Tensor],
    *,
    replace: Mapping[int, torch.Tensor] | None = None,
    device: str = "cpu",
    check: bool = True,
    recorder: TraceRecorder | None = None,
    record: Iterable[int] = (),
) -> Replayed:
    """Run the calls in order in fresh memory.

    Args:
        replace: input values to put other tensors in for.
        check: compare what each call made with the recorded digests.
        recorder: records the calls numbered in `record` (used to cut a region out).

    Raises:
        LookupError: an operator this process does not have.
    """
    for name in trace.imports:
        importlib.import_module(name)
    raw = {storage.id: restore(storage, tensors, device) for storage in trace.storages}
    done = Replayed({value.id: tensor_of(value, raw[value.storage]) for value in trace.values if not value.made})
    done.values.update(replace or {})
    scalars: dict[int, Any] = {}
    chosen = set(record)
    with torch.inference_mode(trace.inference), torch.no_grad():
        for place, call in enumerate(trace.calls):
            mode: AbstractContextManager[Any] = recorder if recorder is not None and place in chosen else nullcontext()
            with mode:
                result = run_call(call, done.values, scalars)
            keep(call, result, done.values, scalars)
            if check and any(digest(done.values[int(number)]) != text for number, text in call.digests.items()):
                done.wrong.append(call.site("out0"))
    return done


def run_call(call: Call, values: Mapping[int, torch.Tensor], scalars: Mapping[int, Any]) -> Any:
    """Run one call."""
    args = [decode(arg, values.__getitem__, scalars.__getitem__) for arg in call.args]
    kwargs = {key: decode(arg, values.__getitem__, scalars.__getitem__) for key, arg in call.kwargs.items()}
    return operator(call.op)(*args, **kwargs)


def keep(call: Call, result: Any, values: dict[int, torch.Tensor], scalars: dict[int, Any]) -> None:
    """File the results under their numbers."""
    results = [result] if len(call.outs) == 1 and not isinstance(result, tuple) else list(result or ())
    for name, item in zip(call.outs, results, strict=False):
        file(name, item, values, scalars)


def file(name: Any, item: Any, values: dict[int, torch.Tensor], scalars: dict[int, Any]) -> None:
    """File one result, or a list of them."""
    if isinstance(name, list | tuple):
        for one, part in zip(name, item, strict=True):
            file(one, part, values, scalars)
    elif isinstance(name, dict) and "value" in name:
        values[name["value"]] = item
    elif isinstance(name, dict):
        scalars[name["scalar"]] = item


def needed(trace: Trace, outputs: Sequence[Port], inputs: Sequence[Port]) -> list[int]:
    """The calls that the outputs depend on when the inputs are given: numbers in order.

    Works on storages: a call is needed when it makes or changes memory that a needed call reads later. The search for
    the memory of an input stops at the moment the input is given.
    """
    given = {trace.values[port.value].storage: port.place for port in inputs}
    want: set[int] = set()
    scalars: set[int] = set()
    found: list[int] = []
    for place in reversed(range(max(port.place for port in outputs) + 1)):
        call = trace.calls[place]
        want -= {storage for storage, moment in given.items() if place < moment}
        made = {trace.values[number].storage for number in [*numbers(call.outs, "value"), *call.wrote]}
        asked = any(port.place == place for port in outputs)
        if not asked and not made & want and not scalars & set(numbers(call.outs, "scalar")):
            continue
        found.append(place)
        arguments = (call.args, tuple(call.kwargs.values()))
        want |= {trace.values[number].storage for number in numbers(arguments, "value")}
        scalars |= set(numbers(arguments, "scalar"))
    return found[::-1]


@dataclass(slots=True, frozen=True)
class Region:
    """A trace that is one region and nothing else."""

    trace: Trace
    tensors: dict[str, torch.Tensor]
    inputs: tuple[int | None, ...]
    """Value of each input asked for; None: the region does not read it."""
    outputs: tuple[int, ...]


def cut(
    trace: Trace, tensors: dict[str, torch.Tensor], outputs: Sequence[Port], inputs: Sequence[Port], device: str = "cpu"
) -> Region:
    """The region between some ports: what it reads and does not make becomes an input, with the bits it had.

    Raises:
        LookupError: an operator this process does not have.
    """
    recorder = TraceRecorder(imports=trace.imports)
    recorder.inference = trace.inference
    chosen = needed(trace, outputs, inputs)
    done = replay(trace, tensors, device=device, check=False, recorder=recorder, record=chosen)
    made = [recorder.find(done.values[port.value]) for port in outputs]
    read = tuple(recorder.find(done.values[port.value]) for port in inputs)
    smaller, data = recorder.finish(tensors.get("pass.rows"), tensors.get("pass.head"), trace.batch)
    return Region(smaller, data, read, tuple(number for number in made if number is not None))
