"""Are the weights of both sides the same bits? Compared by row digests, through merged and packed weights. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
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


@dataclass(slots=True)
class _Haystack:
    view: WeightView
    bytes: bytes
    covered: list[bool]


def compare_weights(rollout: SideWeights, trainer: SideWeights) -> WeightsAnswer:
    """Look for every weight of the trainer as consecutive rows of a weight of the rollout side.

    A merged weight (qkv, gate and up) is the concatenation of its parts, so each part is found inside it. Both must
    be in the layer of the same number: weights of another layer are named as such. Rows of the rollout side that no
    weight of the trainer covers count as a difference, except equal ones (padding). What it could not read back is
    said.
    """
    dtypes = [sorted({w.dtype for w in side.weights}) for side in (rollout, trainer)]
    if not rollout.weights or not trainer.weights:
        side = rollout if not rollout.weights else trainer
        return WeightsAnswer(None, f"not checked: the {side.role} side shows no weights")
    if not set(dtypes[0]) & set(dtypes[1]):
        return WeightsAnswer(
            None, f"not checked: dtypes differ, rollout {', '.join(dtypes[0])}, trainer {', '.join(dtypes[1])}"
        )
    by_columns: dict[tuple[str, tuple[int, ...]], list[_Haystack]] = {}
    for view in rollout.weights:
        hay = _Haystack(view, bytes.fromhex("".join(view.rows)), [False] * len(view.rows))
        by_columns.setdefault((view.dtype, view.shape[1:]), []).append(hay)
    names = {_name(view): view for view in rollout.weights}
    lost: list[str] = []
    for view in trainer.weights:
        same = names.get(_name(view))
        if same is not None and same.rows == view.rows:
            _cover(by_columns[same.dtype, same.shape[1:]], same, 0, len(same.rows))
        else:
            problem = _find(view, by_columns.get((view.dtype, view.shape[1:]), []))
            if problem is not None:
                lost.append(_name(view) + problem)
    extra = [_name(hay.view) for group in by_columns.values() for hay in group if _uncovered(hay)]
    notes = f"; not read back: {'; '.join(rollout.notes)}" if rollout.notes else ""
    if lost:
        return WeightsAnswer(
            False, f"differ: {_some(lost)}" + (f"; only on the rollout side: {_some(extra)}" if extra else "") + notes
        )
    if extra:
        return WeightsAnswer(False, f"differ: only on the rollout side: {_some(extra)}{notes}")
    return WeightsAnswer(True, f"equal ({len(trainer.weights)} tensors){notes}")


def _name(view: WeightView) -> str:
    return f"{view.module}.{view.name}" if view.module else view.name


def _some(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _layer(view: WeightView) -> str:
    found = re.search(r"\d+", view.module)
    return found.group() if found else ""


def _find(view: WeightView, haystacks: list[_Haystack]) -> str | None:
    """Cover the rows of the haystack that holds this weight; None, or what is wrong."""
    needle, elsewhere = bytes.fromhex("".join(view.rows)), ""
    for hay in haystacks:
        at = hay.bytes.find(needle)
        while at >= 0 and at % 16:
            at = hay.bytes.find(needle, at + 1)
        if at < 0:
            continue
        if _layer(hay.view) == _layer(view):
            _cover(haystacks, hay.view, at // 16, len(view.rows))
            return None
        elsewhere = elsewhere or f" (the rollout side has it at {_name(hay.view)})"
    return elsewhere


def _uncovered(hay: _Haystack) -> bool:
    """Whether rows that are no padding were covered by nothing."""
    rest = {row for row, covered in zip(hay.view.rows, hay.covered, strict=True) if not covered}
    return len(rest) > 1 or (len(rest) == 1 and not any(hay.covered) and not hay.view.trivial)


def _cover(haystacks: list[_Haystack], view: WeightView, start: int, count: int) -> None:
    hay = next(h for h in haystacks if h.view is view)
    hay.covered[start : start + count] = [True] * count
