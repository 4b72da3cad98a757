"""A side's process seen from the worker: start, ask, stop."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from samebits.tools.job.log import Log
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import REPLY, Broken, Close, Done, Open, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from samebits.tools.schema.experiment import Experiment
    from samebits.tools.schema.passes import Command

STOP_AFTER_S = 20.0
"""How long a side may take to end after `close` before it is killed, at the end of its work;"""
HURRY_S = 1.0
"""and when the work was broken off. A side that is busy then is killed at once: it would not hear `close`."""
SETTLE_S = 2.0
"""For what a side that has ended printed last; something it started may hold the pipe for longer."""


class SideDied(Exception):
    """The side's process ended or broke while it was asked something."""

    def __init__(self, role: str, message: str, log: Path) -> None:
        super().__init__(f"the {role} side {message}. Next: read the end of {log}")


class OutOfTime(Exception):
    """A deadline passed while a side was at work; its process was ended."""


@dataclass(slots=True)
class Deadline:
    """When the sides of a job must have answered; shared by all of them, moved by the verb."""

    at: float | None = None
    """time.monotonic(); None: never."""

    def left(self) -> float | None:
        """Seconds until then, at least 0."""
        return None if self.at is None else max(0.0, self.at - time.monotonic())


@dataclass(slots=True)
class Session:
    """One open side. Use as a context manager, so that its process never outlives the job."""

    role: Literal["rollout", "trainer"]
    process: subprocess.Popen[bytes]
    log: Path
    commands: int
    replies: int
    deadline: Deadline
    printed: Log
    """What fills `log`."""
    opened: Done | None = None
    busy: bool = False
    """A command was sent and not answered yet."""
    kept: bool = False
    """The job goes on with it when a verb is done: `stop` leaves it open, unless the work was broken off."""
    _rest: bytes = b""

    @classmethod
    def start(
        cls,
        role: Literal["rollout", "trainer"],
        experiment: Experiment,
        device: Literal["cpu", "cuda"],
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        taps: bool = False,
        deadline: Deadline | None = None,
    ) -> Self:
        """Start the process and load the model.

        Args:
            taps: see `Open.taps`.

        Raises:
            UserError: the side refused (missing model, package, ...).
            SideDied: the process ended.
            OutOfTime: the deadline passed.
        """
        session = cls.launch(role, experiment, device, folder, env=env, deadline=deadline)
        session.open(experiment, device, taps=taps)
        return session

    @classmethod
    def launch(
        cls,
        role: Literal["rollout", "trainer"],
        experiment: Experiment,
        device: Literal["cpu", "cuda"],
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        deadline: Deadline | None = None,
    ) -> Self:
        """Start the process only: it imports its libraries, and `open` then loads the model.

        Args:
            folder: job folder; the log goes to `folder/sides/ROLE.log` (appended; of a flood head and tail are kept).
            env: on top of the experiment's own environment for this side.
            deadline: for every answer; None: wait for ever.
        """
        config = experiment.rollout if role == "rollout" else experiment.trainer
        log = folder / "sides" / f"{role}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        from samebits.tools.sides.environment import variables

        command_read, command_write = os.pipe()
        reply_read, reply_write = os.pipe()
        wanted = [config.side, device, *(["vllm"] if config.kernels == "vllm" else [])]
        printed = Log(log, keep_head=True)
        # Same process group as the worker: killing the group leaves no orphan.
        process = subprocess.Popen(
            [sys.executable, "-m", "samebits.tools.sides.child", str(command_read), str(reply_write), *wanted],
            stdin=subprocess.DEVNULL,
            stdout=printed.write_end,
            stderr=printed.write_end,
            pass_fds=(command_read, reply_write),
            env=variables(config, device) | dict(config.env) | dict(env or {}),
        )
        printed.follow()
        os.close(command_read)
        os.close(reply_write)
        return cls(role, process, log, command_write, reply_read, deadline or Deadline(), printed)

    def open(self, experiment: Experiment, device: Literal["cpu", "cuda"], *, taps: bool = False) -> None:
        """Load the model; see `start`."""
        config = experiment.rollout if self.role == "rollout" else experiment.trainer
        model = experiment.rollout.model if self.role == "rollout" else experiment.trainer_model
        try:
            self.opened = self.ask(Open(role=self.role, config=config, model=model, device=device, taps=taps))
        except BaseException:
            self.stop(hurry=True)
            raise

    def ask(self, command: Command) -> Done:
        """Send one command and wait for its reply.

        Raises:
            UserError: the side refused what the user gave.
            SideDied: the process ended, or the command raised in it.
            OutOfTime: the deadline passed; the process is gone.
        """
        try:
            self.busy = True
            os.write(self.commands, command.model_dump_json().encode() + b"\n")
            line = self._line()
        except BrokenPipeError:
            line = b""
        self.busy = False
        if not line:
            code = self.process.wait()
            self.printed.close(SETTLE_S)
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise SideDied(self.role, f"{how} during {command.command!r}", self.log)
        reply = REPLY.validate_json(line)
        if isinstance(reply, Refused):
            # What a library printed on the way up is nowhere else.
            log = f"; log: {self.log}" if isinstance(command, Open) else ""
            raise UserError(reply.thing, reply.reason, reply.next_step + log)
        if isinstance(reply, Broken):
            raise SideDied(self.role, f"failed during {command.command!r}: {reply.message}", self.log)
        return reply

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            if not select.select([self.replies], [], [], self.deadline.left())[0]:
                self.process.kill()
                self.process.wait()
                raise OutOfTime(f"the {self.role} side was still at work")
            chunk = os.read(self.replies, 1 << 16)
            if not chunk:
                return b""
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    @property
    def running(self) -> bool:
        """Whether it can be asked."""
        return self.commands >= 0 and self.process.poll() is None

    def stop(self, *, hurry: bool = False) -> None:
        """End the process, unless it is kept: ask first, then kill.

        Args:
            hurry: the work was broken off (an error, Ctrl-C): there is nothing to wait for.
        """
        if hurry or not self.kept:
            self.end(hurry=hurry)

    def end(self, *, hurry: bool = False) -> None:
        """See `stop`; a kept one too. Once it has ended nothing happens."""
        if self.commands < 0:
            return
        with suppress(OSError):
            os.write(self.commands, Close().model_dump_json().encode() + b"\n")
        for descriptor in (self.commands, self.replies):
            with suppress(OSError):
                os.close(descriptor)
        self.commands = self.replies = -1  # the numbers may be those of other files from now on
        try:
            deaf = self.opened is None or (hurry and self.busy)
            self.process.wait(0.0 if deaf else HURRY_S if hurry else STOP_AFTER_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.printed.close(SETTLE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(hurry=kind is not None)
