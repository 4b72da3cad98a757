"""Review in a terminal: a person decides there, a pipe never does."""

from __future__ import annotations

import http.client
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from samebits.tools.schema import reviews
from samebits.tools.schema.proposals import open_proposal

COMMAND = [sys.executable, "-m", "samebits.server.cli.main", "review"]


def decided(project: Path, id: str) -> Any:
    return reviews.find(open_proposal(project / ".samebits" / "jobs" / id))


@pytest.mark.parametrize("given", [(), ("ID",), ("ID", "--page")])
def test_a_pipe_is_refused_and_sees_no_code(
    project: Path, proposed: Callable[..., str], given: tuple[str, ...]
) -> None:
    id = proposed()
    arguments = [id if word == "ID" else word for word in given]
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=project,
        input="approve\n\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert "only a person decides. Next: run it yourself, in a terminal of your own" in done.stderr
    assert not re.search(r"[2-9A-Z]{4}-[2-9A-Z]{4}|http", done.stdout + done.stderr)
    assert decided(project, id) is None


def test_half_a_terminal_and_one_that_is_not_its_own_are_refused(project: Path, proposed: Callable[..., str]) -> None:
    id = proposed()
    ours, theirs = pty.openpty()
    try:
        for more in ({"stdout": subprocess.PIPE}, {"stdout": theirs}):
            # In a session of its own it has no controlling terminal, whatever its standard input is.
            process = subprocess.Popen(
                [*COMMAND, id], cwd=project, stdin=theirs, stderr=subprocess.PIPE, start_new_session=True, **more
            )
            os.write(ours, b"approve\r\r")
            _, said = process.communicate(timeout=300)
            assert process.returncode == 2
            assert b"only a person decides" in said
    finally:
        os.close(ours)
        os.close(theirs)
    assert decided(project, id) is None


def test_a_person_approves_in_the_terminal(project: Path, proposed: Callable[..., str], at_terminal: Any) -> None:
    id = proposed()
    with at_terminal(project, id) as person:
        person.read_until("Type approve, reject")
        shown = person.seen
        person.type("approve")
        person.read_until("Note")
        person.type("As the contract says.")
        assert person.wait() == 0
    for word in (
        "rows-in-pytorch for rms_norm",
        "+ def fold(x):",
        "0 of 9 elements differ",
        "no repro was given",
        "not run",
    ):
        assert word in shown
    review = decided(project, id)
    assert (review.decision, review.note, review.surface) == ("approved", "As the contract says.", "terminal")


def test_a_rejection_needs_a_note_and_anything_else_decides_nothing(
    project: Path, proposed: Callable[..., str], at_terminal: Any
) -> None:
    id = proposed()
    for typed, note, code, decision in (
        ("yes", None, 2, None),
        ("reject", "", 2, None),
        ("reject", "No.", 1, "rejected"),
    ):
        with at_terminal(project, id) as person:
            person.read_until("Type approve, reject")
            person.type(typed)
            if note is not None:
                person.read_until("Note")
                person.type(note)
            assert person.wait() == code, person.seen
        review = decided(project, id)
        assert (review and review.decision) == decision


def test_what_a_candidate_holds_cannot_speak_to_the_terminal(kit: Any, tmp_path: Path, at_terminal: Any) -> None:
    project = kit.repository(tmp_path / "project")
    with (project / "kernels" / "norm" / "kernel.py").open("a") as file:
        file.write("# \x1b]0;title\x07\x1b[2J\u202e hidden\n")
    made = kit.propose(project, why="look \x1b[31m here")
    with at_terminal(project, made.parent.name) as person:
        person.read_until("Type approve, reject")
        plain = re.sub(r"\x1b\[[0-9;]*m", "", person.seen.replace("\x1b[31m", "!"))  # without rich's own styles
        assert "<U+001B>]0;title<U+0007><U+001B>[2J<U+202E> hidden" in plain
        assert "look <U+001B>[31m here" in plain
        assert not {"\x1b", "\x07", "\u202e", "!"} & set(plain)
        assert "4 characters that the eye does not see" in plain
        assert person.end() == 2, "Ctrl-C leaves it"


def test_a_proposal_in_a_folder_of_its_own_is_reviewed_by_name_and_by_path(
    kit: Any, tmp_path: Path, at_terminal: Any
) -> None:
    project = kit.repository(tmp_path / "project")
    made = kit.propose(project)
    place = tmp_path / "elsewhere" / "pr"
    place.parent.mkdir()
    made.parent.rename(place)
    (project / ".samebits" / "jobs" / "pr").symlink_to(place)  # as --out leaves it
    for named in ("pr/proposal", "pr", str(place), str(place / "proposal")):
        with at_terminal(project, named) as person:
            person.read_until("Type approve, reject")
            person.type("")
            assert person.wait() == 2


def answers(port: int) -> bool:
    """Whether the page is served."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 401
    except ConnectionRefusedError:
        return False
    finally:
        connection.close()


def test_ctrl_c_on_the_page_is_its_end_and_a_port_out_of_range_is_refused(
    project: Path, at_terminal: Any, eventually: Any
) -> None:
    (project / ".samebits" / "jobs").mkdir(parents=True, exist_ok=True)
    with at_terminal(project) as person:
        address = urlsplit(person.address_and_code()[0])
        eventually(lambda: answers(int(address.port or 0)))
        assert person.end() == 0, person.seen
    with at_terminal(project, "--port", "99999") as person:
        assert person.wait() == 2
        assert "Traceback" not in person.seen


def test_what_is_no_proposal_is_said_before_anything_is_asked(project: Path, at_terminal: Any) -> None:
    with at_terminal(project, "20260101-000000-propose-none/proposal") as person:
        assert person.wait() == 2
        assert "not among this project's jobs" in person.seen
