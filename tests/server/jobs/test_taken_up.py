"""What becomes of a server's queue and of its running job when the server is killed: the next one sees to both."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samebits.server.jobs.index import Index

START = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


class Serving:
    """A `samebits serve` process spoken to in raw lines, so that it can be killed in mid-call."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.count = 0

    def say(self, method: str, params: dict[str, Any], **more: Any) -> None:
        assert self.process.stdin is not None
        line = json.dumps({"jsonrpc": "2.0", "method": method, "params": params} | more)
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def call(self, name: str, arguments: dict[str, Any]) -> None:
        self.count += 1
        self.say("tools/call", {"name": name, "arguments": arguments}, id=self.count)

    def measure(self, do: str, value: float = 600) -> None:
        self.call("measure_gap", {"overrides": [f"rollout.engine.do={do}", f"rollout.engine.value={value}"]})

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def serving(project: Path, *options: str) -> Iterator[Serving]:
    """A server that is killed at the end."""
    command = [sys.executable, "-m", "samebits.server.cli.main", "serve", *options]
    with subprocess.Popen(command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            server = Serving(process)
            server.say("initialize", START, id=0)
            assert b'"serverInfo"' in server.line()
            server.say("notifications/initialized", {})
            yield server
        finally:
            process.kill()


def test_what_a_killed_server_had_queued_is_taken_up_by_the_next_and_what_ran_is_resumed(
    project: Path, strays: Any, eventually: Any
) -> None:
    jobs = project / ".samebits" / "jobs"
    with serving(project) as first:
        first.measure("until")
        eventually(lambda: list(jobs.glob("*/events.jsonl")))
        (ran,) = jobs.glob("2*")
        for _ in range(2):
            first.measure("sleep", 0)
        # Asked for is not queued yet: that is what the list says, whose entries have an owner.
        eventually(lambda: [row.owner == first.process.pid for row in Index(jobs).rows()] == [True] * 3)
    eventually(lambda: not strays())
    waited = set(jobs.glob("2*")) - {ran}
    assert not any((path / "started").exists() for path in waited), "the control: nobody else starts them"
    assert {row.state for row in Index(jobs).rows()} == {"interrupted"}
    with serving(project) as second:
        eventually(lambda: all((path / "ended.json").exists() for path in waited))
        assert sorted(row.state for row in Index(jobs).rows()) == ["interrupted", "succeeded", "succeeded"]
        second.call("measure_gap", {"config": ran.name})
        eventually(lambda: len(list(jobs.glob("2*/events.jsonl"))) == 4)
        (resumed,) = set(jobs.glob("2*")) - waited - {ran}
        assert (resumed / "resumes").read_text() == ran.name
        assert (resumed / "request.json").read_bytes() == (ran / "request.json").read_bytes()
        (resumed / "go").touch()
        eventually(lambda: (resumed / "ended.json").exists())
    states = {row.id: row.state for row in Index(jobs).rows()}
    assert (states[ran.name], states[resumed.name]) == ("interrupted", "succeeded")


def test_a_read_only_server_takes_up_nothing(project: Path, eventually: Any, strays: Any) -> None:
    jobs = project / ".samebits" / "jobs"
    with serving(project) as first:
        first.measure("sleep")
        eventually(lambda: list(jobs.glob("*/events.jsonl")))
        first.measure("sleep", 0)
        eventually(lambda: len(list(jobs.glob("*/request.json"))) == 2)
    eventually(lambda: not strays())
    with serving(project, "--read-only") as look:
        look.call("wait_job", {"seconds": 0})
        assert b'"total":2' in look.line().replace(b": ", b":")
    assert len(list(jobs.glob("*/started"))) == 1
