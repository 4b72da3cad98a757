"""Are the weights of both sides the same bits? Compared by row digests, through merged and packed weights. No torch.

A float32 weight whose values a narrower dtype holds to the bit is also compared as that dtype: vLLM's CPU engine widens
biases (it adds them in float32), which changes no value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from samebits.tools.schema.artifacts.weights import SideWeights, WeightView

LISTED = 8
"""Names given before "and n more"."""


@dataclass(slots=True, frozen=True)
class WeightsAnswer:
    """Outcome of the check."""

    equal: bool | None
    """None: could not be checked."""
    text: str
    """"equal (n tensors)", "differ: names", or "not checked: why"."""

    @property
    def word(self) -> Literal["equal", "differ", "unchecked"]:
        """What a GapReport says."""
        return "unchecked" if self.equal is None else "equal" if self.equal else "differ"


@dataclass(slots=True, frozen=True)
class _Haystack:
    """One form of a weight of the rollout side; all forms share what is covered."""

    view: WeightView
    rows: tuple[str, ...]
    bytes: bytes
    covered: list[bool]


@dataclass(slots=True)
class _Search:
    """The weights of the rollout side, and what was found in them."""

    by_columns: dict[tuple[str, tuple[int, ...]], list[_Haystack]] = field(default_factory=dict)
    by_name: dict[tuple[str, str], _Haystack] = field(default_factory=dict)
    widened: list[str] = field(default_factory=list)
    """Of the trainer's weights: equal in value, of another dtype on the rollout side."""

    @classmethod
    def of(cls, rollout: SideWeights) -> _Search:
        search = cls()
        for view in rollout.weights:
            covered = [False] * len(view.rows)
            for dtype, rows in view.forms():
                hay = _Haystack(view, rows, bytes.fromhex("".join(rows)), covered)
                search.by_columns.setdefault((dtype, view.shape[1:]), []).append(hay)
                search.by_name[_name(view), dtype] = hay
        return search

    def find(self, view: WeightView) -> str | None:
        """Cover the rows that hold this weight; None, or what is wrong."""
        elsewhere = ""
        for dtype, rows in view.forms():
            same = self.by_name.get((_name(view), dtype))
            if same is not None and same.rows == rows:
                found: tuple[_Haystack, int] | str = (same, 0)
            else:
                found = _within(view, rows, self.by_columns.get((dtype, view.shape[1:]), []))
            if not isinstance(found, str):
                hay, start = found
                hay.covered[start : start + len(rows)] = [True] * len(rows)
                if hay.view.dtype != view.dtype:
                    self.widened.append(f"{hay.view.dtype} on the rollout side and {view.dtype} on the trainer side")
                return None
            elsewhere = elsewhere or found
        return elsewhere

    def extra(self) -> list[str]:
        """Weights of which rows that are no padding were covered by nothing."""
        every = [hay for group in self.by_columns.values() for hay in group if hay.rows is hay.view.rows]
        return [_name(hay.view) for hay in every if _uncovered(hay)]


def compare_weights(rollout: SideWeights, trainer: SideWeights) -> WeightsAnswer:
    """Look for every weight of the trainer as consecutive rows of a weight of the rollout side.

    A merged weight (qkv, gate and up) is the concatenation of its parts, so each part is found inside it. Both must
    be in the layer of the same number: weights of another layer are named as such. Rows of the rollout side that no
    weight of the trainer covers count as a difference, except equal ones (padding). A weight that one side holds in
    float32 is equal to one of a narrower dtype that holds the same values to the bit; how many such there are is said,
    and so is what could not be read back.
    """
    if not rollout.weights or not trainer.weights:
        side = rollout if not rollout.weights else trainer
        return WeightsAnswer(None, f"not checked: the {side.role} side shows no weights")
    search, lost = _Search.of(rollout), []
    for view in trainer.weights:
        problem = search.find(view)
        if problem is not None:
            lost.append(_name(view) + problem)
    extra = search.extra()
    notes = f"; not read back: {'; '.join(rollout.notes)}" if rollout.notes else ""
    only = f"only on the rollout side: {_some(extra)}" if extra else ""
    if (lost or extra) and not _dtypes(rollout) & _dtypes(trainer):
        named = [", ".join(sorted(_dtypes(side))) for side in (rollout, trainer)]
        return WeightsAnswer(None, f"not checked: dtypes differ, rollout {named[0]}, trainer {named[1]}")
    if lost:
        return WeightsAnswer(False, f"differ: {_some(lost)}" + (f"; {only}" if only else "") + notes)
    if extra:
        return WeightsAnswer(False, f"differ: {only}{notes}")
    return WeightsAnswer(True, f"equal ({len(trainer.weights)} tensors{_wider(search.widened)}){notes}")


def _dtypes(side: SideWeights) -> set[str]:
    """Of the weights that are of their dtype by value, where there are such."""
    return {view.dtype for view in side.weights if not view.widened} or {view.dtype for view in side.weights}


def _wider(widened: list[str]) -> str:
    kinds = {kind: widened.count(kind) for kind in widened}
    return "".join(f"; {count} of them {kind}, with the same values" for kind, count in kinds.items())


def _name(view: WeightView) -> str:
    return f"{view.module}.{view.name}" if view.module else view.name


def _some(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _layer(view: WeightView) -> str:
    found = re.search(r"\d+", view.module)
    return found.group() if found else ""


def _within(view: WeightView, rows: tuple[str, ...], haystacks: list[_Haystack]) -> tuple[_Haystack, int] | str:
    """Where these rows lie in a weight of the same layer; else where else they do, or nothing."""
    needle, elsewhere = bytes.fromhex("".join(rows)), ""
    for hay in haystacks:
        at = hay.bytes.find(needle)
        while at >= 0 and at % 16:
            at = hay.bytes.find(needle, at + 1)
        if at < 0:
            continue
        if _layer(hay.view) == _layer(view):
            return hay, at // 16
        elsewhere = elsewhere or f" (the rollout side has it at {_name(hay.view)})"
    return elsewhere


def _uncovered(hay: _Haystack) -> bool:
    """Whether rows that are no padding were covered by nothing."""
    rest = {row for row, covered in zip(hay.rows, hay.covered, strict=True) if not covered}
    return len(rest) > 1 or (len(rest) == 1 and not any(hay.covered) and not hay.view.trivial)
