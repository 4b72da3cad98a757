"""A person at a terminal: `samebits review` on a pseudo-terminal that nobody else reads, and the page in a browser.

For tests elsewhere: `with Person(project) as person: person.decide_on_page("JOB/proposal", "approved", "note")`.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

Found = TypeVar("Found")
COMMAND = [sys.executable, "-m", "samebits.server.cli.main", "review"]
WAIT_S = 120.0
CODE = r"code: (\S+)\n"


def helper(name: str) -> ModuleType:
    """A module beside this file; tests/ is no package."""
    spec = importlib.util.spec_from_file_location(f"samebits_review_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Person:
    """`samebits review` as a person runs it, in a terminal of its own.

    Args:
        project: the project's folder.
        arguments: of the command.
        env: further variables, for example XDG_STATE_HOME.
    """

    def __init__(self, project: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.screen, terminal = pty.openpty()

        def own_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [*COMMAND, *arguments], cwd=project, env=dict(os.environ) | (env or {}), stdin=terminal, stdout=terminal,
            stderr=terminal, start_new_session=True, preexec_fn=own_terminal,
        )  # fmt: skip
        os.close(terminal)
        self.shown = b""
        self.due = 1
        """Codes that the page has shown by now: one at its start, another after one that opened or five wrong ones."""
        self.wrong = 0
        """Wrong codes since then."""

    @property
    def seen(self) -> str:
        """All that the terminal has shown."""
        return self.shown.decode(errors="replace").replace("\r\n", "\n")

    def read_until(self, pattern: str) -> re.Match[str]:
        """What the terminal shows, up to a pattern."""
        return self._shown(lambda: re.search(pattern, self.seen), pattern)

    def _shown(self, find: Callable[[], Found | None], what: str) -> Found:
        """Read on until it is found."""
        until = time.monotonic() + WAIT_S
        while (found := find()) is None:
            ready, _, _ = select.select([self.screen], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"never shown: {what}\n{self.seen}"
            try:
                data = os.read(self.screen, 1 << 16)
            except OSError:
                data = b""
            assert data, f"ended without showing {what}\n{self.seen}"
            self.shown += data
        return found

    def newest_code(self) -> str:
        """The last of the codes that are due; it is waited for."""

        def newest() -> str | None:
            codes = re.findall(CODE, self.seen)
            return codes[-1] if len(codes) >= self.due else None

        return self._shown(newest, f"{self.due} codes")

    def _read(self, seconds: float) -> bool:
        """Take in what the terminal shows within that time; False at its end."""
        if not select.select([self.screen], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.screen, 1 << 16)
        except OSError:
            return False
        self.shown += data
        return bool(data)

    def type(self, line: str) -> None:
        """A line and the return key."""
        os.write(self.screen, line.encode() + b"\r")

    def address_and_code(self) -> tuple[str, str]:
        """What stands in the terminal."""
        address = self.read_until(r"open (http://\S+)\s")[1]
        return address, self.read_until(r"code: (\S+)\s")[1]

    def enter(self, browser: Any) -> str:
        """Open the page in a browser and type the code; returns the page's address without its path."""
        address, code = self.address_and_code()
        browser.open(address)
        browser.until("document.activeElement && document.activeElement.id == 'code'")
        browser.type(code.lower())
        browser.leave("button.primary")
        self.due += 1
        return "/".join(address.split("/")[:3])

    def decide_on_page(self, id: str, decision: str, note: str = "") -> None:
        """Open a proposal on the page and press the button."""
        with helper("browser").Browser() as browser:
            base = self.enter(browser)
            browser.open(f"{base}/proposal/{id}")
            browser.click("#note")
            browser.type(note)
            browser.leave(f"button[value={decision}]")
            assert browser.value("document.querySelector('[role=status]').innerText").lower().startswith(decision)

    def end(self) -> int:
        """Ctrl-C, and the exit code. Again where nothing comes of it: who was about to read may have missed it."""
        until = time.monotonic() + WAIT_S
        while self.process.poll() is None and time.monotonic() < until:
            os.write(self.screen, b"\x03")
            again = time.monotonic() + 15
            while self.process.poll() is None and time.monotonic() < again:
                self._read(0.1)
                time.sleep(0.01)
        return self.wait()

    def wait(self) -> int:
        """The exit code, the terminal read meanwhile."""
        until = time.monotonic() + WAIT_S
        while self.process.poll() is None:
            assert time.monotonic() < until, self.seen
            if not self._read(0.1):
                time.sleep(0.01)
        while select.select([self.screen], [], [], 0.0)[0] and self._read(0.0):
            pass  # what it showed last
        return self.process.returncode

    def __enter__(self) -> Person:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.screen)
