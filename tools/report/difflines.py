"""A unified patch as rows of two columns: line numbers, what changed inside a line, what the eye would not see."""

from __future__ import annotations

import difflib
import re
import unicodedata
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

FILE = re.compile(r"^diff --git a/(\S+) b/(\S+)$")
HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
WORD = re.compile(r"\w+|\s+|[^\w\s]")
ALIKE = 0.45
"""Two lines more alike than this are one line that was changed; less: one went, another came."""
MOST_PAIRS = 4000
"""Pairs of lines looked at in one run of changes; beyond it lines are paired in order."""
NEAR = 6
"""Unchanged lines shown around a change."""
FEWEST_FOLDED = 4
SEEN_SPACES = frozenset(" \t")
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One side of a row."""

    number: int
    text: str
    marks: Spans = ()
    """Half-open ranges of characters that the other side does not have."""
    ends: bool = True
    """False: the file ends here without a newline."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line on either side; None where a side has none."""

    kind: Literal["same", "changed", "removed", "added"]
    old: Cell | None
    new: Cell | None


@dataclass(slots=True)
class Block:
    """Rows in a run: shown, or folded away because nothing near them changed."""

    rows: list[Row]
    folded: bool


@dataclass(slots=True)
class File:
    """One file of the patch."""

    path: str
    change: Literal["added", "removed", "changed"] = "changed"
    rows: list[Row] = field(default_factory=list)
    mode: str = ""
    """What git says about modes, when it says something."""

    @property
    def added(self) -> int:
        """Lines that are new."""
        return sum(row.kind in ("added", "changed") for row in self.rows)

    @property
    def removed(self) -> int:
        """Lines that are gone."""
        return sum(row.kind in ("removed", "changed") for row in self.rows)

    @property
    def hidden(self) -> int:
        """Characters in new lines that the eye does not see."""
        return sum(len(odd(row.new.text)) for row in self.rows if row.new is not None and row.kind != "same")

    def blocks(self) -> list[Block]:
        """The rows, what is far from any change folded."""
        near = [False] * len(self.rows)
        for number, row in enumerate(self.rows):
            if row.kind != "same":
                for place in range(max(0, number - NEAR), min(len(near), number + NEAR + 1)):
                    near[place] = True
        found: list[Block] = []
        for shown, group in groupby(zip(near, self.rows, strict=True), key=lambda pair: pair[0]):
            rows = [row for _, row in group]
            if not shown and len(rows) < FEWEST_FOLDED:
                shown = True
            if found and not found[-1].folded and shown:
                found[-1].rows += rows
            else:
                found.append(Block(rows, folded=not shown))
        return found


def parse(patch: str) -> list[File]:
    """The files of a git patch.

    Raises:
        ValueError: a line that belongs to no patch.
    """
    files: list[File] = []
    old = new = 0
    gone: list[Cell] = []
    come: list[Cell] = []

    def close() -> None:
        if gone or come:
            files[-1].rows += paired(gone, come)
            gone.clear()
            come.clear()

    in_hunk = False
    for line in patch.split("\n")[:-1]:
        if found := FILE.match(line):
            close() if files else None
            files.append(File(found[2]))
            in_hunk = False
        elif not files:
            raise ValueError(f"not a patch: {line[:80]!r}")
        elif not in_hunk and not line.startswith("@@"):
            _head(files[-1], line)
        elif found := HUNK.match(line):
            close()
            old, new, in_hunk = int(found[1]), int(found[2]), True
        elif line.startswith("-"):
            if come:
                close()
            gone.append(Cell(old, line[1:]))
            old += 1
        elif line.startswith("+"):
            come.append(Cell(new, line[1:]))
            new += 1
        elif line.startswith("\\"):
            _unended(gone, come, files[-1].rows)
        elif line.startswith(" ") or not line:
            close()
            files[-1].rows.append(Row("same", Cell(old, line[1:]), Cell(new, line[1:])))
            old, new = old + 1, new + 1
        else:
            raise ValueError(f"not a line of a patch: {line[:80]!r}")
    if files:
        close()
    return files


def _head(file: File, line: str) -> None:
    if line.startswith("new file mode"):
        file.change = "added"
    elif line.startswith("deleted file mode"):
        file.change = "removed"
    elif line.startswith(("old mode", "new mode")):
        file.mode = f"{file.mode} {line}".strip()


def _unended(gone: list[Cell], come: list[Cell], rows: list[Row]) -> None:
    """The last line read has no newline behind it."""
    for cells in (come, gone):
        if cells:
            last = cells[-1]
            cells[-1] = Cell(last.number, last.text, last.marks, ends=False)
            return
    if rows and rows[-1].old is not None and rows[-1].new is not None:
        old, new = rows[-1].old, rows[-1].new
        rows[-1] = Row("same", Cell(old.number, old.text, ends=False), Cell(new.number, new.text, ends=False))


def paired(gone: list[Cell], come: list[Cell]) -> list[Row]:
    """Rows of one run of changes: lines that are alike stand side by side, in order."""
    rows: list[Row] = []
    i = j = 0
    for left, right in [*_matches(gone, come), (len(gone), len(come))]:
        rows += [Row("removed", cell, None) for cell in gone[i:left]]
        rows += [Row("added", None, cell) for cell in come[j:right]]
        if left < len(gone) and right < len(come):
            old, new = marked(gone[left], come[right])
            rows.append(Row("changed", old, new))
        i, j = left + 1, right + 1
    return rows


def _matches(gone: list[Cell], come: list[Cell]) -> list[tuple[int, int]]:
    """Pairs (place in gone, place in come), ascending in both, of largest total likeness."""
    if len(gone) * len(come) > MOST_PAIRS:
        return [(n, n) for n in range(min(len(gone), len(come))) if _likeness(gone[n].text, come[n].text) > ALIKE]
    best = [[0.0] * (len(come) + 1) for _ in range(len(gone) + 1)]
    like = [[_likeness(a.text, b.text) for b in come] for a in gone]
    for i in reversed(range(len(gone))):
        for j in reversed(range(len(come))):
            both = like[i][j] + best[i + 1][j + 1] if like[i][j] > ALIKE else 0.0
            best[i][j] = max(best[i + 1][j], best[i][j + 1], both)
    found, i, j = [], 0, 0
    while i < len(gone) and j < len(come):
        if like[i][j] > ALIKE and best[i][j] == like[i][j] + best[i + 1][j + 1]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


def _likeness(a: str, b: str) -> float:
    if not a.strip() or not b.strip():
        return 0.0
    return difflib.SequenceMatcher(None, WORD.findall(a), WORD.findall(b), autojunk=False).ratio()


def marked(old: Cell, new: Cell) -> tuple[Cell, Cell]:
    """Both cells with the words that the other does not have."""
    words = WORD.findall(old.text), WORD.findall(new.text)
    starts = [[0], [0]]
    for side, place in zip(words, starts, strict=True):
        for word in side:
            place.append(place[-1] + len(word))
    spans: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for kind, a, b, c, d in difflib.SequenceMatcher(None, *words, autojunk=False).get_opcodes():
        if kind != "equal":
            for into, place, (first, last) in zip(spans, starts, ((a, b), (c, d)), strict=True):
                if first < last:
                    into.append((place[first], place[last]))
    return (
        Cell(old.number, old.text, tuple(spans[0]), old.ends),
        Cell(new.number, new.text, tuple(spans[1]), new.ends),
    )


def odd(text: str) -> list[tuple[int, str]]:
    """Characters the eye does not see or takes for others: (place, name). Letters beyond ASCII count too: code has no
    need of them, and some look like ASCII ones.
    """
    return [(place, name_of(char)) for place, char in enumerate(text) if is_odd(char)]


def is_odd(char: str) -> bool:
    """Control, format, private, unassigned characters and spaces that are no space or tab; letters beyond ASCII."""
    if char in SEEN_SPACES or (" " < char <= "~"):
        return False
    return unicodedata.category(char)[0] in "CZLM"


def name_of(char: str) -> str:
    """U+XXXX and its Unicode name."""
    return f"U+{ord(char):04X} {unicodedata.name(char, 'control character')}"
