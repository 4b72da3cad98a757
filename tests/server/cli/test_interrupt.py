"""Ctrl-C at the edges of a command: while it is imported, outside a job, twice, and too late."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from samebits.server.cli import show
from samebits.tools.schema.results import Cancelled, Result, Succeeded

if TYPE_CHECKING:
    from samebits.server.jobs.launch import Running

# The signal comes while the command line is being imported, at one of its modules.
AT_IMPORT = """
import importlib.abc, os, signal, sys
from samebits.server.cli import entry
class At(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "samebits.server.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass
sys.meta_path.insert(0, At())
sys.argv = ["samebits", *sys.argv[1:]]
{before}
entry.main()
"""
OUTSIDE = """
import os, signal, typer
from samebits.server.cli import guarded
app = typer.Typer(add_completion=False)
@app.command()
def wait(as_json: bool = typer.Option(False, "--json")) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit({code})
guarded.run({command})
"""


def ran(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_while_the_command_line_is_imported_it_ends_with_one_line() -> None:
    done = ran(AT_IMPORT.format(before=""), "version", "--json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: stopped on request")
    outcome = json.loads(done.stdout)
    assert (outcome["state"], outcome["error"], outcome["job"]) == ("failed", "user", "")
    assert ran(AT_IMPORT.format(before=""), "version").stdout == "", "without --json"


def test_without_the_handler_that_is_a_traceback() -> None:
    done = ran(AT_IMPORT.format(before="entry.stopped_early = signal.default_int_handler"), "version")
    assert done.returncode != 2
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("command", ["app", "lambda: wait(False)"])
def test_outside_a_job_it_ends_with_one_line(command: str) -> None:
    done = ran(OUTSIDE.format(command=command, code=0))
    assert (done.returncode, done.stderr) == (2, "error: stopped on request. Next: run the command again\n")


@dataclass
class Job:
    """Stands in for a job: Ctrl-C comes while it is looked at, and again while it is ended."""

    last: Succeeded | Cancelled
    folder: Path = Path()
    asked: list[str] = field(default_factory=list)

    def outcome(self) -> Succeeded | Cancelled | None:
        if not self.asked:
            self.asked.append("looked")
            raise KeyboardInterrupt
        return self.last

    def events(self) -> list[object]:
        return []

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        self.asked.append("stopped")


@pytest.mark.parametrize("last", [Succeeded(result=Result(verdict="done", summary="it ran")), Cancelled()])
def test_a_second_one_does_not_break_off_the_end_and_what_was_finished_is_shown(last: Succeeded | Cancelled) -> None:
    job = Job(last)
    before = signal.getsignal(signal.SIGINT)
    assert show.follow(cast("Running", job), quiet=True) == last
    assert job.asked == ["looked", "stopped"]
    assert signal.getsignal(signal.SIGINT) is before


def test_the_control_a_signal_outside_the_end_is_heard() -> None:
    with pytest.raises(KeyboardInterrupt):
        Job(Cancelled()).stop()
