"""A patch as two columns: numbers, pairs, marks inside a line, and what the eye would not see."""

from __future__ import annotations

import difflib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.tools.report import code, difflines
from samebits.tools.report.difflines import Cell, File, Row

HEAD = "diff --git a/k.py b/k.py\nindex 1..2 100644\n--- a/k.py\n+++ b/k.py\n"


def only(patch: str) -> File:
    (file,) = difflines.parse(patch)
    return file


def test_numbers_and_kinds_of_a_change() -> None:
    file = only(HEAD + "@@ -1,3 +1,3 @@\n a\n-total = sum(x)\n+total = fold(x)\n b\n")
    assert [row.kind for row in file.rows] == ["same", "changed", "same"]
    changed = file.rows[1]
    assert changed.old == Cell(2, "total = sum(x)", ((8, 11),))
    assert changed.new == Cell(2, "total = fold(x)", ((8, 12),))
    assert (file.added, file.removed) == (1, 1)


def test_lines_that_are_alike_stand_side_by_side_and_others_do_not() -> None:
    old = ["alpha = compute(first, second)", "zzzz"]
    new = ["import os", "alpha = compute(first, third)", "qqqq"]
    rows = difflines.paired(
        [Cell(n, text) for n, text in enumerate(old)], [Cell(n, text) for n, text in enumerate(new)]
    )
    assert [row.kind for row in rows] == ["added", "changed", "removed", "added"]
    assert rows[1].new is not None
    assert rows[1].new.text[slice(*rows[1].new.marks[0])] == "third"


def test_a_new_file_and_one_that_ends_without_a_newline() -> None:
    file = only(
        "diff --git a/n.toml b/n.toml\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ b/n.toml\n"
        "@@ -0,0 +1,2 @@\n+--- a = 1\n+b = 2\n\\ No newline at end of file\n"
    )
    assert file.change == "added"
    assert [row.new.text for row in file.rows if row.new] == ["--- a = 1", "b = 2"], "content that looks like a header"
    assert [row.new.ends for row in file.rows if row.new] == [True, False]


def test_what_is_far_from_any_change_is_folded() -> None:
    lines = [f" line {n}" for n in range(40)]
    lines[20:21] = ["-old", "+new"]
    file = only(HEAD + "@@ -1,40 +1,40 @@\n" + "\n".join(lines) + "\n")
    assert [(block.folded, len(block.rows)) for block in file.blocks()] == [(True, 14), (False, 14), (True, 13)]
    assert sum(len(block.rows) for block in file.blocks()) == len(file.rows)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("if a\u202e == b:", "U+202E"),
        ("x\u200b = 1", "U+200B"),
        ("x\u00a0= 1", "U+00A0"),
        ("\x1b[2Kx", "U+001B"),
        ("x = 1\r", "U+000D"),
        ("\u0430 = 1", "CYRILLIC SMALL LETTER A"),
    ],
)
def test_what_the_eye_does_not_see_is_counted_and_shown(text: str, shown: str) -> None:
    file = only(HEAD + f"@@ -0,0 +1 @@\n+{text}\n")
    assert file.hidden == 1
    assert shown in code.markup(text, (), [])
    assert only(HEAD + "@@ -0,0 +1 @@\n+\tplain = 'text'  # ~\n").hidden == 0


def test_markup_is_escaped_and_keeps_the_text() -> None:
    line = "x = '<script>alert(1)</script>' & y"
    coloured = code.colours("k.py", [line])[0]
    made = code.markup(line, ((4, 12),), coloured)
    assert "<script" not in made
    assert made.striptags() == line
    assert '<i class="s">' in made
    assert "<mark>" in made


def test_colours_of_several_lines_fall_on_their_own() -> None:
    lines = ['"""One', 'two"""', "def f():  # three", "    return 4"]
    found = code.colours("k.py", lines)
    assert [[css for _, _, css in line] for line in found] == [["s"], ["s"], ["k", "d", "c"], ["k", "n"]]
    assert code.colours("k.unknown", lines) == [[], [], [], []]


def test_what_is_no_patch_is_refused() -> None:
    for text in ("hello\n", HEAD + "@@ -1 +1 @@\n?what\n"):
        with pytest.raises(ValueError, match="patch"):
            difflines.parse(text)


def sides(rows: list[Row]) -> tuple[list[str], list[str]]:
    return [row.old.text for row in rows if row.old], [row.new.text for row in rows if row.new]


LINES = st.lists(st.sampled_from(["a = 1", "a = 2", "b = f(a)", "", "  x", "-- y", "++ z", "@@ q"]), max_size=12)


@settings(max_examples=60, deadline=None)
@given(LINES, LINES)
def test_both_columns_are_the_two_files_whatever_they_hold(old: list[str], new: list[str]) -> None:
    made = list(difflib.unified_diff(old, new, "a/k.py", "b/k.py", lineterm="", n=99))
    if not made:
        return
    file = only("diff --git a/k.py b/k.py\n" + "\n".join(made) + "\n")
    assert sides(file.rows) == (old, new)
    for row in file.rows:
        for cell in (row.old, row.new):
            assert cell is None or all(0 <= first < last <= len(cell.text) for first, last in cell.marks)
    numbers = [row.new.number for row in file.rows if row.new]
    assert numbers == list(range(1, len(new) + 1))


def test_a_patch_of_git_itself_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\nthree")
    (tmp_path / "b").write_text("one\n2\nthree\n")
    command = ["git", "diff", "--no-index", "--src-prefix=a/", "--dst-prefix=b/", "a", "b"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    file = only(made.replace("diff --git a/a b/b", "diff --git a/b b/b"))
    assert sides(file.rows) == (["one", "two", "three"], ["one", "2", "three"])
    assert [row.old.ends for row in file.rows if row.old] == [True, True, False]
    assert all(row.new.ends for row in file.rows if row.new)
