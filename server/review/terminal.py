"""Review in a terminal: the same evidence and the same change, and a decision that is typed."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.server.review.decide import decide
from samebits.tools.report import difflines
from samebits.tools.report.review import stamp, state_of
from samebits.tools.schema import gates, reviews
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.proposals import open_proposal

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.schema.proposals import Proposal

WORDS = {"approve": "approved", "reject": "rejected"}


def terminal() -> IO[str]:
    """The person's own terminal, whatever standard output is.

    Raises:
        UserError: standard input or output is no terminal, or there is none: then no person is there.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        reason = "standard input and output must be a terminal: only a person decides"
        raise UserError("samebits review", reason, "run it yourself, in a terminal of your own")
    try:
        return open("/dev/tty", "w", encoding="utf-8")
    except OSError as error:
        reason = "there is no terminal: only a person decides"
        raise UserError("samebits review", reason, "run it yourself, in a terminal of your own") from error


def review_here(folder: Path, id: str) -> int:
    """Show a proposal and ask; returns the exit code: 0 approved, 1 rejected, 2 not reviewed.

    Raises:
        UserError: no terminal, or the proposal cannot be shown or changed while it was looked at.
    """
    with terminal() as tty:
        proposal = open_proposal(folder)
        console = Console(file=tty, highlight=False, soft_wrap=True)
        show(proposal, id, console)
        tty.write("\nType approve, reject, or anything else to leave it: ")
        tty.flush()
        word = sys.stdin.readline().strip().lower()
        if word not in WORDS:
            tty.write("not reviewed\n")
            return 2
        tty.write("Note (a rejection needs one; one line): ")
        tty.flush()
        note = sys.stdin.readline().strip()
        review = decide(folder, proposal.digest, WORDS[word], note, "terminal")  # type: ignore[arg-type]
        tty.write(f"{review.decision} by {review.reviewer}\n")
        return 0 if review.decision == "approved" else 1


def show(proposal: Proposal, id: str, console: Console) -> None:
    """Everything the page shows, as text."""
    manifest, gate = proposal.manifest, proposal.gate
    decided = reviews.find(proposal)
    console.print(Text(f"{manifest.candidate} for {manifest.operator}", "bold"), Text(f"({state_of(decided)})"))
    if manifest.why:
        console.print(safe("words of whoever proposed it, not checked: " + manifest.why), style="dim")
    if decided is not None and decided.note:
        console.print(safe(f"note of {stamp(decided.time)}: {decided.note}"))
    facts = {
        "proposal": f"{id}, {proposal.digest}",
        "patch": manifest.patch,
        "base commit": f"{manifest.base[:12]} {manifest.base_subject}",
        "branch to be": manifest.branch,
    }
    for name, value in facts.items():
        console.print(Text(f"{name}: ", "dim") + safe(value))
    table = Table(box=None, pad_edge=False)
    for name in ("leg", "outcome", "evidence"):
        table.add_column(name, overflow="fold")
    for leg in gate.legs:
        outcome = leg.outcome
        said = (
            outcome.evidence
            if outcome.status == "green"
            else outcome.what
            if outcome.status == "red"
            else outcome.reason
        )
        style = {"green": "green", "red": "red", "not_run": "dim"}[outcome.status]
        table.add_row(leg.name, Text(outcome.status.replace("_", " "), style), safe(said))
    console.print()
    console.print(table)
    if not gates.made_here(manifest.made_from["candidate_gate"]):
        console.print(gates.UNSEALED, style="bold red")
    if manifest.repro is not None:
        for name, run in (("before", manifest.repro.before), ("after", manifest.repro.after)):
            held = f" [{run.sandbox.words}]" if run.sandbox else ""
            console.print(Text(f"repro {name}: ", "dim") + safe(f"{run.status.replace('_', ' ')}: {run.words}{held}"))
            if run.unsandboxed:
                console.print(f"the repro {name} ran without a sandbox", style="bold red")
    else:
        console.print("no repro was given: what it repairs is not shown", style="yellow")
    for file in difflines.parse(proposal.patch):
        show_file(file, console)


def show_file(file: difflines.File, console: Console) -> None:
    """One file's change, lines that are far from it left out."""
    console.print()
    console.print(Text(f"{file.path} ({file.change}, +{file.added} -{file.removed})", "bold"))
    if file.hidden:
        console.print(f"{file.hidden} characters that the eye does not see are in the new lines", style="bold red")
    for block in file.blocks():
        if block.folded:
            console.print(f"      ... {len(block.rows)} unchanged lines", style="dim")
            continue
        for row in block.rows:
            if row.kind == "same" and row.new is not None:
                console.print(Text(f"{row.new.number:5}   ", "dim") + safe(row.new.text))
            for cell, sign, style in ((row.old, "-", "red"), (row.new, "+", "green")):
                if row.kind != "same" and cell is not None:
                    line = Text(f"{cell.number:5} {sign} ", style) + safe(cell.text, style)
                    for first, last in cell.marks:
                        line.stylize("reverse", first + 8, last + 8)
                    console.print(line)


def safe(text: str, style: str = "") -> Text:
    """Text whose control and unseen characters are written out: nothing reaches the terminal as a command."""
    shown = Text(style=style)
    for char in text:
        if char == "\n" or not difflines.is_odd(char):
            shown.append(char)
        else:
            shown.append(f"<{difflines.name_of(char).split()[0]}>", "bold reverse")
    return shown
