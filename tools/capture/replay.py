"""Proof (a): a module, operator or kernel run again at once on copies of what went in must give the same bits.

It runs inside the same forward pass, so engine context is there. What cannot be run again without harm is skipped
with the reason: objects that hold state (a KV cache object), and written arguments too large to copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.capture.alone import LOOKED, Alone, Held, look
from samebits.tools.capture.tensors import copy_strided, extent, leaves, mapped, same_bits
from samebits.tools.schema.artifacts.capture import Replay
from samebits.tools.schema.sites import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from samebits.tools.capture.alone import Shown
    from samebits.tools.capture.operators import Kind
    from samebits.tools.capture.recorder import Frame, Recorder

LIMIT = 256 << 20
"""Bytes of one argument that may be copied."""
_PLAIN = (
    int,
    float,
    bool,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal", "uniform", "exponential")


@dataclass(slots=True)
class Again:
    """Copies of arguments, or the reason why there are none."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    before: Held | None = None
    """What a module held before the call; None: too large, or no module."""


@dataclass(slots=True)
class Tally:
    """All replays of one site."""

    calls: int = 0
    unequal: int = 0
    reason: str = ""
    looked: int = 0
    """Calls that were looked at closely; and"""
    shown: Shown | None = None
    """what the first of them that showed anything proves."""


class Replays:
    """Runs and counts."""

    def __init__(self) -> None:
        self.tallies: dict[Site, Tally] = {}

    def results(self) -> tuple[Replay, ...]:
        """One Replay per site."""
        return tuple(
            Replay(
                site=site,
                equal=tally.calls > 0 and tally.unequal == 0,
                calls=tally.calls,
                reason=self._why(tally),
                shows=tally.shown.name if tally.shown else "",
                why=tally.shown.why if tally.shown else "",
            )
            for site, tally in self.tallies.items()
        )

    @staticmethod
    def _why(tally: Tally) -> str:
        if tally.unequal:
            return f"{tally.unequal} of {tally.calls} calls gave other bits"
        return tally.reason

    def _add(self, site: Site, equal: bool) -> None:
        tally = self.tallies.setdefault(site, Tally())
        tally.calls += 1
        tally.unequal += not equal

    def _skip(self, site: Site, reason: str) -> None:
        self.tallies.setdefault(site, Tally()).reason = f"not run again: {reason}"

    # --- modules

    def prepare(self, recorder: Recorder, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Again | None:
        """Copies of a module's arguments. With no modules chosen, only modules without children are run again."""
        assert recorder.plan is not None
        chosen = recorder.plan.modules
        if (frame.path not in chosen) if chosen is not None else any(True for _ in frame.module.children()):
            return None
        state = _stateful((*args, *kwargs.values()))
        large = [t for _, t in leaves((args, kwargs)) if extent(t) * t.element_size() > LIMIT]
        if state or large:
            reason = (
                f"an argument is a {state}, which may hold state"
                if state
                else f"an argument has {large[0].nbytes >> 20} MiB"
            )
            return Again(reason=reason)
        return Again(mapped(args, copy_strided), mapped(kwargs, copy_strided), before=Held.of(frame.module))

    def module(
        self, recorder: Recorder, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Run a module's forward again and compare what it returned and what it wrote into its arguments."""
        again: Again = frame.again
        site = Site(module=frame.path, port="out0", call=frame.call)
        if again.reason:
            self._skip(site, again.reason)
            return
        live = [t for _, t in leaves((output, args, kwargs))]
        new_args, new_kwargs = mapped((again.args, again.kwargs), copy_strided)
        now = None if again.before is None else Held.of(frame.module)
        result = frame.module.forward(*new_args, **new_kwargs)
        equal = _all_same(live, [t for _, t in leaves((result, new_args, new_kwargs))])
        self._add(site, equal)
        if again.before is None or now is None:
            return
        now.put_back()
        tally, running = self.tallies[site], recorder.sink.running
        wanted = tally.looked < LOOKED if equal else tally.looked < 2 * LOOKED
        if tally.shown is not None or not wanted or running is None:
            return
        tally.looked += 1
        ran = tuple(op for path, call, op in running.operators if (path, call) == (frame.path, frame.call))
        tally.shown = look(Alone(frame.module, (again.args, again.kwargs), live, again.before, running, ran))

    # --- operators

    def prepare_operator(
        self, recorder: Recorder, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Again | None:
        """Copies of an operator's arguments. Weights are read where they lie, unless it writes one: copies of all in
        each pass would take longer than the operators."""
        if recorder.plan is None or not recorder.plan.replay:
            return None
        if any(word in kind.name for word in _RANDOM):
            return Again(reason="it draws random numbers")
        state = _stateful((*args, *kwargs.values()))
        if state:
            return Again(reason=f"an argument is a {state}, which may hold state")
        for name, arg in (*zip(kind.arguments, args, strict=False), *kwargs.items()):
            for _, tensor in leaves(arg):
                if name in kind.written and extent(tensor) * tensor.element_size() > LIMIT:
                    return Again(reason=f"it writes {name} ({tensor.nbytes >> 20} MiB)")
        weight = recorder.sink.is_weight
        named = (*zip(kind.arguments, args, strict=False), *kwargs.items())
        if any(weight(tensor) for name, arg in named if name in kind.written for _, tensor in leaves(arg)):
            return Again(mapped(args, _copy_small), mapped(kwargs, _copy_small))

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            return tensor if weight(tensor) else _copy_small(tensor)

        return Again(mapped(args, copied), mapped(kwargs, copied))

    def operator(
        self, recorder: Recorder, site: Site, func: Any, again: Again, out: Any, written: list[torch.Tensor]
    ) -> None:
        """Run an operator again and compare its returns and what it wrote."""
        if again.reason:
            self._skip(site, again.reason)
            return
        from samebits.tools.capture.operators import OperatorMode, kind_of

        result = func(*again.args, **again.kwargs)
        rewritten = [t for _, t in OperatorMode.written(kind_of(func), again.args, again.kwargs)]
        self._add(site, _all_same([t for _, t in leaves(out)] + written, [t for _, t in leaves(result)] + rewritten))

    # --- launches

    def prepare_launch(self, recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Again | None:
        """Copies of a kernel's arguments; all must be copied, since any may be written."""
        if recorder.plan is None or not recorder.plan.replay:
            return None
        large = [
            t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor) and extent(t) * t.element_size() > LIMIT
        ]
        if large:
            return Again(reason=f"an argument has {large[0].nbytes >> 20} MiB")
        return Again(tuple(_copy(a) for a in args), {key: _copy(value) for key, value in kwargs.items()})

    def launch(
        self,
        recorder: Recorder,
        site: Site,
        run: Callable[..., Any],
        kernel: Any,
        again: Again,
        live: tuple[tuple[Any, ...], dict[str, Any]],
    ) -> None:
        """Launch a kernel again and compare all its tensors."""
        if again.reason:
            self._skip(site, again.reason)
            return
        run(kernel, *again.args, **again.kwargs)
        args, kwargs = live
        old = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        new = [t for t in (*again.args, *again.kwargs.values()) if isinstance(t, torch.Tensor)]
        self._add(site, _all_same(old, new))


def _copy(value: Any) -> Any:
    return copy_strided(value) if isinstance(value, torch.Tensor) else value


def _copy_small(tensor: torch.Tensor) -> torch.Tensor:
    """What is too large to copy is not written (prepare_operator saw to it), so it can be read in place."""
    return tensor if extent(tensor) * tensor.element_size() > LIMIT else copy_strided(tensor)


def _stateful(values: Iterable[Any]) -> str:
    """Class name of the first value that is neither tensor nor plain; "" when there is none."""
    for value in values:
        if isinstance(value, dict):
            inner = _stateful(value.values())
        elif isinstance(value, (tuple, list)):
            inner = _stateful(value)
        else:
            inner = "" if isinstance(value, (torch.Tensor, *_PLAIN)) else type(value).__name__
        if inner:
            return inner
    return ""


def _all_same(old: list[torch.Tensor], new: list[torch.Tensor]) -> bool:
    return len(old) == len(new) and all(same_bits(a, b) for a, b in zip(old, new, strict=True))
