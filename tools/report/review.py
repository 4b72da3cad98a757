"""The pages of human review: the list of proposals, one proposal, and the question for the code."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from samebits.tools.report import charts, code, difflines
from samebits.tools.report.page import TEMPLATES, environment
from samebits.tools.schema import gates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samebits.tools.schema.artifacts.candidate_gate import CandidateGate, Leg
    from samebits.tools.schema.artifacts.review import ReviewManifest
    from samebits.tools.schema.proposals import Proposal

SCRIPT = (TEMPLATES / "review.js").read_text(encoding="utf-8")
NUMBER = re.compile(r"^(.*): (us|ratio)$")


@dataclass(frozen=True, slots=True)
class Side:
    """One cell of the table: number, line, sign."""

    number: int
    code: Markup
    ends: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table."""

    kind: str
    old: Side | None
    new: Side | None


@dataclass(frozen=True, slots=True)
class Pane:
    """A run of rows."""

    folded: bool
    lines: list[Line]


@dataclass(frozen=True, slots=True)
class FileView:
    """One file of the patch."""

    path: str
    change: str
    added: int
    removed: int
    hidden: int
    panes: list[Pane]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the list."""

    id: str
    state: str
    title: str
    detail: str
    problem: str = ""


def stamp(seconds: float) -> str:
    """A moment, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def files_of(patch: str) -> list[FileView]:
    """The patch, ready for the page."""
    return [_view(file) for file in difflines.parse(patch)]


def _view(file: difflines.File) -> FileView:
    colours = [
        code.colours(file.path, [cell.text for row in file.rows if (cell := getattr(row, side)) is not None])
        for side in ("old", "new")
    ]
    taken = [iter(lines) for lines in colours]

    def side(cell: difflines.Cell | None, which: int) -> Side | None:
        if cell is None:
            return None
        return Side(cell.number, code.markup(cell.text, cell.marks, next(taken[which])), cell.ends)

    panes = [
        Pane(block.folded, [Line(row.kind, side(row.old, 0), side(row.new, 1)) for row in block.rows])
        for block in file.blocks()
    ]
    return FileView(file.path, file.change, file.added, file.removed, file.hidden, panes)


def state_of(review: ReviewManifest | None) -> str:
    """waiting, approved or rejected."""
    return "waiting" if review is None else review.decision


def timing(gate: CandidateGate) -> list[tuple[str, float, float]]:
    """(shape and rows, time of the replaced operator / time of the candidate, microseconds of the candidate)."""
    leg = _leg(gate, "time")
    found: dict[str, dict[str, float]] = {}
    if leg is not None and leg.outcome.status == "green":
        for name, value in leg.outcome.numbers.items():
            if match := NUMBER.match(name):
                found.setdefault(match[1], {})[match[2]] = value
    return [(name, pair["ratio"], pair["us"]) for name, pair in found.items() if len(pair) == 2]


def timing_chart(gate: CandidateGate) -> Markup:
    """The chart; empty when nothing was timed."""
    rows = [(name, ratio, f"{us * ratio:.3g} \u2192 {us:.3g} \u00b5s") for name, ratio, us in timing(gate)]
    return Markup(charts.ratios(rows, "speed against the operator it replaces")) if rows else Markup("")


def _leg(gate: CandidateGate, name: str) -> Leg | None:
    return next((leg for leg in gate.legs if leg.name == name), None)


def render(
    proposal: Proposal,
    review: ReviewManifest | None,
    *,
    id: str,
    token: str = "",
    note: str = "",
    error: str = "",
) -> str:
    """The page of one proposal.

    Args:
        token: of the session, for the form.
        note: what was typed already.
        error: why the last try did not count.
    """
    time_leg = _leg(proposal.gate, "time")
    files = files_of(proposal.patch)
    return (
        environment()
        .get_template("review.html.jinja")
        .render(
            id=id,
            proposal=proposal,
            manifest=proposal.manifest,
            gate=proposal.gate,
            legs=proposal.gate.legs,
            green=sum(leg.outcome.status == "green" for leg in proposal.gate.legs),
            files=files,
            added=sum(file.added for file in files),
            removed=sum(file.removed for file in files),
            hidden=sum(file.hidden for file in files),
            review=review,
            state=state_of(review),
            proposed=stamp(proposal.manifest.created),
            decided=stamp(review.time) if review else "",
            mean=(time_leg.outcome.numbers.get("mean") if time_leg and time_leg.outcome.status == "green" else None),
            lowest=(
                time_leg.outcome.numbers.get("lowest") if time_leg and time_leg.outcome.status == "green" else None
            ),
            chart=timing_chart(proposal.gate),
            sandbox=proposal.gate.sandbox is not None and proposal.gate.sandbox.whole,
            unsealed="" if gates.made_here(proposal.manifest.made_from["candidate_gate"]) else gates.UNSEALED,
            token=token,
            note=note,
            error=error,
            script=Markup(SCRIPT),
        )
    )


def render_list(entries: Sequence[Entry], folder: str) -> str:
    """The page with all proposals of a project."""
    return environment().get_template("reviews.html.jinja").render(entries=entries, folder=folder)


def render_question(to: str, error: str = "") -> str:
    """The page that asks for the code shown in the terminal, and then leads to the path `to`."""
    return environment().get_template("unlock.html.jinja").render(to=to, error=error)


def render_problem(title: str, text: str) -> str:
    """A page that says why there is none."""
    return environment().get_template("problem.html.jinja").render(heading=title, text=text)


def policy() -> str:
    """Content-Security-Policy: this page's own style and script by their digests, forms to itself, nothing else."""

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    style = str(environment().globals["style"])
    return (
        f"default-src 'none'; style-src {digest(style)}; script-src {digest(SCRIPT)}; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
