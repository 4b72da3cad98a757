"""One line of samebits.toml is changed; every other byte stays, or the edit is refused."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.tools.propose.kernels_line import with_candidate, with_kernels
from samebits.tools.schema.errors import UserError

BOTH = ("rollout", "trainer")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[rollout]\nkernels = "none"  # why\n', '[rollout]\nkernels = ["k/a"]  # why\n'),
        ('[rollout]\nkernels="samebits"\nx=1\n', '[rollout]\nkernels=["k/a"]\nx=1\n'),
        (
            '[rollout]\n# kernels = "none"  # said\nx = 1\n',
            '[rollout]\n# kernels = "none"  # said\nkernels = ["k/a"]\nx = 1\n',
        ),
        ('[rollout]\nkernels = ["k/b"]\n', '[rollout]\nkernels = ["k/b", "k/a"]\n'),
        ('[rollout]\nkernels = ["k/a"]\n', '[rollout]\nkernels = ["k/a"]\n'),
        ("[rollout]\r\nx = 1\r\n", '[rollout]\r\nkernels = ["k/a"]\r\nx = 1\r\n'),
        ("[trainer]\nx = 1", '[trainer]\nx = 1\n\n[rollout]\nkernels = ["k/a"]\n'),
        ("", '[rollout]\nkernels = ["k/a"]\n'),
        ("[rollout]", '[rollout]\nkernels = ["k/a"]\n'),
    ],
)
def test_the_line_is_put_in_or_replaced_and_nothing_else_moves(text: str, expected: str) -> None:
    assert with_candidate(text, ("rollout",), "k/a", "samebits.toml") == expected


def test_both_sides_get_it() -> None:
    edited = with_candidate("[rollout]\n[trainer]\n", BOTH, "k/a", "samebits.toml")
    assert {side: tomllib.loads(edited)[side]["kernels"] for side in BOTH} == {side: ["k/a"] for side in BOTH}


@pytest.mark.parametrize(
    "text",
    [
        'rollout = { kernels = "none" }\n',
        'rollout.kernels = "none"\n',
        '[rollout]\nkernels = [\n  "k/b",\n]\n',
        '[rollout]\nnote = """\n[rollout]\nkernels = 1\n"""\nkernels = "none"\n',
    ],
)
def test_a_form_it_cannot_edit_is_refused_and_not_guessed_at(text: str) -> None:
    with pytest.raises(UserError, match="a form this cannot edit"):
        with_kernels(text, "rollout", ["k/a"], "samebits.toml")


def test_vllms_own_table_and_broken_toml_are_refused() -> None:
    with pytest.raises(UserError, match="cannot stand on one side together"):
        with_candidate('[trainer]\nkernels = "vllm"\n', BOTH, "k/a", "samebits.toml")
    with pytest.raises(UserError, match="not valid TOML"):
        with_candidate("[rollout\n", BOTH, "k/a", "samebits.toml")


LINES = st.sampled_from(
    ["[rollout]", "[trainer]", "[gate]", 'kernels = "none"', 'kernels = ["x"]', "# kernels = 1", "a = 1 # kernels = 2",
     "kernels.b = 1", '"kernels" = "none"', "", "b = '''", "'''", "[rollout.env]"]
)  # fmt: skip


@given(st.lists(LINES, max_size=8))
def test_whatever_the_file_the_edit_is_exact_or_refused(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    try:
        after = tomllib.loads(with_kernels(text, "rollout", ["k/a"], "samebits.toml"))
    except UserError:
        return
    section = after["rollout"]
    assert section.pop("kernels") == ["k/a"]
    before.setdefault("rollout", {}).pop("kernels", None)
    assert after == before
