"""What a module shows when it is run alone on what went in: a race, kept state, memory nobody wrote, leaking padding,
a result that follows the number of rows. The run goes on as if nothing had happened: state and generators are put back.

Legend: T token rows of the pass.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from samebits.tools.capture.tensors import copy_strided, leaves, mapped, same_bits
from samebits.tools.diff.kinds import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.capture.passes import Pass

Word = Literal["race", "state", "order_batch"]
Call = tuple[tuple[Any, ...], dict[str, Any]]
LIMIT = 64 << 20
"""Bytes of state that may be copied before each call."""
REPEATS = 8
"""Calls on the same inputs before a module passes as equal to itself."""
LOOKED = 2
"""Calls of a module that are looked at closely."""
ROWS = 8
"""Token rows of a call that are run by themselves."""
BY_ROW = ("linear", "norm", "activation", "embedding")
"""Kinds whose rows have nothing to do with each other, so that one may be run by itself. Attention is none."""
OWN = frozenset(vars(torch.nn.Module()))
_ALLOCATES = ("aten.empty", "aten.new_empty")


@dataclass(slots=True, frozen=True)
class Shown:
    """A class of cause with its proof."""

    name: Word
    why: str


@dataclass(slots=True)
class Held:
    """What a module may keep from call to call: buffers and attributes of it and its parts; and the generators."""

    module: torch.nn.Module
    tensors: list[tuple[torch.Tensor, torch.Tensor]]
    """Live tensors with copies of what they held."""
    attributes: list[tuple[torch.nn.Module, str, Any, Any]]
    """Part, name, live value, and a copy of what a list or dict held."""
    generators: tuple[Any, ...]

    @classmethod
    def of(cls, module: torch.nn.Module) -> Held | None:
        """A copy of it; None: too large (a KV cache)."""
        live = list(module.buffers())
        plain: list[tuple[torch.nn.Module, str, Any]] = []
        for part in module.modules():
            for name, value in vars(part).items():
                if name not in OWN and (_plain(value) or any(True for _ in leaves(value))):
                    plain.append((part, name, value))
                    live += [tensor for _, tensor in leaves(value)]
        if sum(tensor.nbytes for tensor in live) > LIMIT:
            return None
        tensors = [(tensor, copy_strided(tensor)) for tensor in live]
        kept = [(part, name, value, _held(value)) for part, name, value in plain]
        return cls(module, tensors, kept, _generators())

    def put_back(self, *, state: bool = True, generators: bool = True) -> None:
        """As it was."""
        if state:
            for tensor, before in self.tensors:
                tensor.copy_(before)
            for part, name, value, held in self.attributes:
                if type(value) is list:
                    value[:] = held
                elif type(value) is dict:
                    value.clear()
                    value.update(held)
                vars(part)[name] = value
        if generators:
            torch.set_rng_state(self.generators[0])
            random.setstate(self.generators[1])
            if self.generators[2] is not None:
                torch.cuda.set_rng_state(self.generators[2])


def _plain(value: Any) -> bool:
    return isinstance(value, (int, float, complex, str, bytes, tuple, type(None))) or type(value) in (list, dict)


def _held(value: Any) -> Any:
    """The entries of a list or dict, which others may hold too: it is put back in place."""
    return value.copy() if type(value) in (list, dict) else None


def _generators() -> tuple[Any, ...]:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), random.getstate(), cuda


class Filled(TorchDispatchMode):
    """Memory that Python code allocates holds this value instead of what happened to be there."""

    def __init__(self, value: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.value = value

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if str(func).startswith(_ALLOCATES) and out.is_floating_point():
            out.fill_(self.value)
        return out


@dataclass(slots=True)
class Alone:
    """One call of a module, run again.

    Args:
        given: arguments as they were before the call; each run gets a copy.
        gave: what the call itself returned, and its arguments as it left them.
        before: what the module held before the call.
        running: the pass, for the token rows.
        operators: what ran inside, for the kind.
    """

    module: torch.nn.Module
    given: Call
    gave: list[torch.Tensor]
    before: Held
    running: Pass
    operators: tuple[str, ...] = ()

    def run(self, given: Call | None = None) -> list[torch.Tensor]:
        """Tensors that the module returns for copies of the arguments, and the arguments as it leaves them."""
        args, kwargs = mapped(self.given if given is None else given, copy_strided)
        result = self.module.forward(*args, **kwargs)
        return [tensor.detach().clone() for _, tensor in leaves((result, args, kwargs))]

    def from_before(self) -> list[torch.Tensor]:
        """The same with what the module held, and the generators, as they were before the call."""
        self.before.put_back()
        return self.run()

    def not_itself(self) -> Shown | None:
        """The call again, and when it has other bits: with the state put back, and the generators."""
        first = self.run()
        steady = all(same(first, self.run()) for _ in range(REPEATS - 1))
        if steady and same(self.gave, first):
            return None
        fixed = self.from_before()
        if not all(same(fixed, self.from_before()) for _ in range(REPEATS - 1)):
            return Shown(
                "race",
                "the same call on the same inputs gave other bits, also with what the module holds and the random "
                "generators put back before each call",
            )
        if steady and not same(self.gave, fixed):
            return None  # what is around it decided (an edit inside, the engine's context), not the module
        if all(same(fixed, self._with_state()) for _ in range(REPEATS - 1)):
            return Shown(
                "state",
                "what the module keeps from call to call decides: the same call gave other bits, and the same ones "
                "each time once its attributes and buffers were put back before it",
            )
        return Shown(
            "race",
            "it draws random numbers: the same call on the same inputs gave other bits, and the same ones each time "
            "once the random generators were put back before it",
        )

    def _with_state(self) -> list[torch.Tensor]:
        self.before.put_back(generators=False)
        return self.run()

    def memory(self) -> Shown | None:
        """Memory that was allocated and not written: zeros or NaN in it, the result is the same. Asked first, since
        what happened to be there may differ from call to call."""
        zeros = [self._filled(0.0) for _ in range(REPEATS)]
        if not all(same(zeros[0], again) for again in zeros[1:]) or same(zeros[0], self._filled(float("nan"))):
            return None
        return Shown(
            "state",
            "it reads memory that nobody wrote: with zeros in what it allocates it gives the same bits each time, with "
            "NaN there others",
        )

    def _filled(self, value: float) -> list[torch.Tensor]:
        self.before.put_back()
        with Filled(value):
            return self.real(self.run())

    def padding(self) -> Shown | None:
        """Padding rows of zeros or of large numbers: the token rows are the same. (Not NaN: 0 times NaN in a masked
        product is NaN, and padding holds numbers.)"""
        pad_P = (self.running.all.keys < 0).nonzero().view(-1)
        if not len(pad_P) or len(pad_P) == len(self.running.all.keys):
            return None
        found = []
        for value in (0.0, 1000.0):
            self.before.put_back()
            found.append(self.real(self.run(self.with_rows(pad_P, value))))
        if same(*found):
            return None
        return Shown(
            "state", f"token rows come out with other bits when its {len(pad_P)} padding rows hold other numbers"
        )

    def company(self) -> Shown | None:
        """Token rows by themselves and among the others: moved by their number, not by what they hold."""
        rows_T = (self.running.all.keys >= 0).nonzero().view(-1).flip(0)
        if kind_of(self.operators) not in BY_ROW or len(rows_T) < 2:
            return None
        tried = rows_T[:: -(-len(rows_T) // ROWS)].tolist()
        moved = [row for row in tried if self._follows_number(row)]
        if not moved:
            return None
        return Shown(
            "order_batch",
            f"{len(moved)} of {len(tried)} token rows have other bits by themselves than among {len(rows_T)} rows, "
            f"whatever those hold, and a repeat of the call has the same",
        )

    def _follows_number(self, row: int) -> bool:
        cut = self.only(row)
        others_T = torch.tensor([i for i in range(len(self.running.all.keys)) if i != row])
        if cut is None:
            return False
        among, among_zeros = (self._row(given, row) for given in (self.given, self.with_rows(others_T, 0.0)))
        if among is None or among_zeros is None or not same(among, among_zeros):
            return False
        self.before.put_back()
        solo = [tensor.reshape(1, -1) for tensor in self.run(cut)]
        one_row = [tensor.shape for tensor in solo] == [tensor.shape for tensor in among]
        return one_row and not same(among, solo)

    def _row(self, given: Call, row: int) -> list[torch.Tensor] | None:
        """One token row of what a run gives, [1, columns] each; None: a tensor has no token rows."""
        self.before.put_back()
        found = []
        for tensor in self.run(given):
            layout = self.running.layout(tuple(tensor.shape), None)
            if layout is None or layout.head:
                return None
            found.append(layout.rows(tensor)[row : row + 1])
        return found

    # --- rows

    def with_rows(self, rows_P: torch.Tensor, value: float) -> Call:
        """The arguments with a number in these token rows of every floating tensor."""

        def filled(tensor: torch.Tensor) -> torch.Tensor:
            layout = self.running.layout(tuple(tensor.shape), None)
            if layout is None or layout.head or layout.repeat > 1 or not tensor.is_floating_point():
                return tensor
            changed = copy_strided(tensor)
            seen = layout.view(changed)
            if layout.lead == 1:
                seen[rows_P.to(tensor.device)] = value
            else:
                seen[rows_P.to(tensor.device) // seen.shape[1], rows_P.to(tensor.device) % seen.shape[1]] = value
            return changed

        changed: Call = mapped(self.given, filled)
        return changed

    def only(self, row: int) -> Call | None:
        """The arguments cut down to one token row; None: a tensor among them has no token rows in front."""
        for _, tensor in leaves(self.given):
            layout = self.running.layout(tuple(tensor.shape), None)
            plain = layout is not None and not layout.head and layout.repeat == 1 and layout.split is None
            if not plain or layout is None or layout.axes[: layout.lead] != tuple(range(layout.lead)):
                return None

        def cut(tensor: torch.Tensor) -> torch.Tensor:
            layout = self.running.layout(tuple(tensor.shape), None)
            assert layout is not None
            if layout.lead == 1:
                return tensor[row : row + 1]
            batch, place = divmod(row, tensor.shape[1])
            return tensor[batch : batch + 1, place : place + 1]

        made: Call = mapped(self.given, cut)
        return made

    def real(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The rows of tokens of every tensor that has token rows; of arguments, only what the module wrote matters, and
        that is there too."""
        found = []
        for tensor in tensors:
            layout = self.running.layout(tuple(tensor.shape), None)
            if layout is not None:
                kept = (self.running.all.keys >= 0).to(tensor.device)
                found.append(tensor if layout.head else layout.rows(tensor)[kept])
        return found


PROBES: tuple[Callable[[Alone], Shown | None], ...] = (Alone.memory, Alone.not_itself, Alone.padding, Alone.company)


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """All tensors have equal bits."""
    return len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b, strict=True))


def look(alone: Alone) -> Shown | None:
    """The first thing that is proven, in the order in which they exclude each other; the module is left as it is."""
    now = Held.of(alone.module)
    if now is None:
        return None
    for probe in PROBES:
        try:
            shown = probe(alone)
        except Exception:  # a module that cannot be run on other rows than the engine's shows nothing by it
            shown = None
        finally:
            now.put_back()
        if shown is not None:
            return shown
    return None
