"""The judge's end: starts the process that holds the candidate, in the sandbox, asks it, watches it, and ends it."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from samebits.kernels.ops.rows import Args
from samebits.tools.gate.candidate.log import bounded
from samebits.tools.gate.candidate.plan import Outputs, RedError
from samebits.tools.gate.candidate.wire import Memory, WireError, form_of, placed, receive, send, take_outputs
from samebits.tools.job.log import Log
from samebits.tools.sandbox.box import Box, Kind, choose
from samebits.tools.sandbox.processes import below, folder_bytes, kill_below, memory_bytes
from samebits.tools.sandbox.view import View

INSIDE = "samebits.tools.gate.candidate.inside.server"
HELLO_S = 120.0
LOOK_S = 0.1
DISK_EVERY_S = 1.0
SLACK_BYTES = 4 << 30
"""Address space (RLIMIT_DATA) beyond the memory limit: stacks of threads and the allocator's reserve use no memory."""
SETTLE_S = 2.0
LOST = re.compile(r"CUDA error|Triton Error \[CUDA\]")
"""After such an error every later call in that process fails, or worse: it is ended at once."""


@dataclass(slots=True, frozen=True)
class Limits:
    """What the candidate's process and all it starts may use."""

    memory_bytes: int
    disk_bytes: int = 8 << 30
    processes: int = 256


@dataclass(slots=True)
class Slot:
    """The memory of one argument, and what it holds now."""

    memory: Memory
    known: bool = False
    held: tuple[torch.Tensor, int, dict[str, Any]] | None = None


class NoStartError(Exception):
    """The process did not come up."""


@dataclass(slots=True)
class Link:
    """A running process with one candidate."""

    box: Box
    limits: Limits
    log: Log
    process: subprocess.Popen[bytes]
    end: socket.socket
    outputs: Memory
    device: torch.device
    others: set[int]
    """Processes of this one that were there before."""
    deadline: float = float("inf")
    """time.monotonic() at which the leg must be done."""
    limit_s: float = 0.0
    count: int = 0
    next_look: float = 0.0
    next_disk: float = 0.0
    baseline: set[int] = field(default_factory=set)
    slots: dict[str, Slot] = field(default_factory=dict)

    def call(self, args: Args, what: str) -> Outputs:
        """One call; anything it raises is red."""
        return self.ask_outputs("call", what, args=args)[0]

    def ask_outputs(self, do: str, what: str, **more: Any) -> tuple[Outputs, tuple[Any, ...], dict[str, Any]]:
        """Ask for outputs: copies, the strides they had, and the whole answer."""
        answer = self.ask(do, what, **more)
        try:
            found, strides = take_outputs(self.outputs, answer.get("outputs"), self.device)
        except WireError as error:
            raise RedError(f"{what}: its process answers with {error}") from error
        return found, strides, answer

    def ask(self, do: str, what: str, **more: Any) -> dict[str, Any]:
        """One request and its answer.

        Raises:
            RedError: it raised, died, hung, used too much, or answered nonsense; the text says which and at what call.
        """
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "do": do, **more}
        for key in ("args", "grads"):
            if key in more:
                message[key] = {n: self.placed(n, v) for n, v in more[key].items()}
        new = {name: slot for name, slot in self.slots.items() if not slot.known}
        try:
            send(self.end, message | {"slots": list(new)}, [slot.memory.descriptor for slot in new.values()])
            for slot in new.values():
                slot.known = True
            self.wait()
            answer, _ = receive(self.end)
        except TimeoutError as error:
            raise RedError(f"{what}: {error}{self.last_line()}") from error
        except (WireError, OSError) as error:
            raise RedError(f"{what}: {self.death(str(error))}{self.last_line()}") from error
        if answer.get("id") != self.count:
            raise RedError(f"{what}: its process answers out of turn")
        if "red" in answer:
            if LOST.search(str(answer["red"])):
                self.stop()
            raise RedError(f"{what}: {str(answer['red'])[:1600]}")
        return answer

    def placed(self, name: str, value: Any) -> Any:
        """An argument in words: a number as it is, a tensor by its place in shared memory. What is there already is not
        written again."""
        if not isinstance(value, torch.Tensor):
            return value
        slot = self.slots.setdefault(name, Slot(Memory()))
        form = form_of(value)
        version = value._version
        fresh = not (slot.held and slot.held[0] is value and slot.held[1:] == (version, form))
        if fresh:
            slot.memory.grow(form["offset"] + form["bytes"])
            slot.held = (value, version, form)
            if value.numel():
                once = tuple(slice(0, 1) if step == 0 else slice(None) for step in value.stride())
                placed(slot.memory.bytes, form)[once].copy_(value.detach()[once])
        return form | {"fresh": fresh, "size": slot.memory.size}

    def wait(self) -> None:
        """Until an answer is there.

        Raises:
            TimeoutError: a limit is passed; the process is ended, the text names the limit.
            WireError: it is gone.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self.end, selectors.EVENT_READ)
            while True:
                ready = selector.select(LOOK_S)
                now = time.monotonic()
                if not ready and now > self.deadline:
                    self.stop()
                    raise TimeoutError(f"no answer within {self.limit_s:.0f} s: it hangs, or is far too slow; ended")
                if now >= self.next_look and (passed := self.over_limit(now)):
                    self.stop()
                    raise TimeoutError(passed)
                if ready:
                    return
                if self.process.poll() is not None:
                    raise WireError("closed")

    def over_limit(self, now: float) -> str:
        """The limit that is passed, in words; "" for none."""
        family = below(os.getpid()) - self.others
        self.next_look = time.monotonic() + max(LOOK_S, 20 * (time.monotonic() - now))
        if len(family) > self.limits.processes:
            return f"it started {len(family)} processes, {self.limits.processes} are allowed; all ended"
        if (used := memory_bytes(family)) > self.limits.memory_bytes:
            return f"it used {used >> 20} MiB of memory, {self.limits.memory_bytes >> 20} are allowed; ended"
        if now >= self.next_disk:
            self.next_disk = now + DISK_EVERY_S
            if (size := folder_bytes(self.box.view.private)) > self.limits.disk_bytes:
                return f"it wrote {size >> 20} MiB to disk, {self.limits.disk_bytes >> 20} are allowed; ended"
        return ""

    def left_behind(self) -> int:
        """Processes it started that still run some time after its call came back."""
        until = time.monotonic() + SETTLE_S
        while (left := below(os.getpid()) - self.baseline) and time.monotonic() < until:
            time.sleep(0.05)
        return len(left)

    def death(self, reason: str) -> str:
        """How the process ended, in words."""
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(5)
            self.stop()
            number = -code if code < 0 else code - 128 if code > 128 else 0
            with suppress(ValueError):
                return f"the process died: {signal.Signals(number).name}"
            return f"the process ended early with exit code {code}"
        self.stop()
        return f"its process broke off ({reason}); ended"

    def last_line(self) -> str:
        """The end of what it printed."""
        return f". Last line of its log: {self.log.last_line()}"

    def stop(self) -> None:
        """End it and all it started, also what has left its family: this process is its subreaper."""
        self.process.kill()
        kill_below(os.getpid(), self.others)
        self.process.wait()
        self.log.close()
        self.end.close()
        for memory in (self.outputs, *(slot.memory for slot in self.slots.values())):
            memory.close()


def start(job: dict[str, Any], view: View, limits: Limits, log_path: Path, skipped: dict[Kind, str]) -> Link:
    """Start the process in the strongest sandbox in which torch and the device come up. Nothing of the candidate's has
    run when this returns.

    Raises:
        NoStartError: not even without a sandbox.
    """
    while True:
        box = choose(view, skipped)
        data = limits.memory_bytes + SLACK_BYTES if job["device"] == "cpu" else 0
        box = replace(box, file_bytes=limits.memory_bytes, data_bytes=data)
        try:
            return start_in(box, job, limits, log_path)
        except NoStartError as error:
            if box.kind == "none":
                raise
            skipped[box.kind] = f"torch does not come up inside: {error}"


def start_in(box: Box, job: dict[str, Any], limits: Limits, log_path: Path) -> Link:
    """Start it and wait for its hello."""
    end, theirs = socket.socketpair()
    outputs, log = Memory(), bounded(log_path)
    given = {key: job[key] for key in ("operator", "device", "interpreted")}
    given |= {"folder": job["inside"], "build_folder": str(box.view.private / "build")}
    given |= {"socket": theirs.fileno(), "outputs": outputs.descriptor}
    others = below(os.getpid())
    process = subprocess.Popen(
        box.command(INSIDE, json.dumps(given)),
        stdin=subprocess.DEVNULL,
        stdout=log.write_end,
        stderr=log.write_end,
        env=box.view.environment(),
        pass_fds=(theirs.fileno(), outputs.descriptor),
    )
    theirs.close()
    log.follow()
    device = torch.device(job["device"])
    link = Link(box, limits, log, process, end, outputs, device, others, time.monotonic() + HELLO_S, HELLO_S)
    try:
        link.wait()
        receive(end)
    except (WireError, TimeoutError, OSError) as error:
        link.stop()
        raise NoStartError(f"{error}. {log.last_line()}") from error
    link.baseline = below(os.getpid())
    return link
