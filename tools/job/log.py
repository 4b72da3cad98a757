"""What other processes print: taken from a pipe, and bounded on disk however much it is."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_BYTES = 8 << 20


class Log:
    """PATH holds the last up to `limit_bytes`, STEM.1 what was before; with `keep_head` STEM.head what came first. What
    lies between is gone.

    `write_end` is for the writer's standard output and error; `follow` once it has it.
    """

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES, *, keep_head: bool = False) -> None:
        self.path, self.limit_bytes = path, limit_bytes
        self.older = path.with_name(f"{path.stem}.1{path.suffix}")
        self.head = path.with_name(f"{path.stem}.head{path.suffix}") if keep_head else self.older
        self.file = path.open("ab", buffering=0)
        self.read_end, self.write_end = os.pipe()
        self.thread = threading.Thread(target=self._copy, daemon=True)
        self.thread.start()

    def follow(self) -> None:
        """The writers have their ends: when the last of them is gone, so is the pipe."""
        with suppress(OSError):
            os.close(self.write_end)
        self.write_end = -1

    def close(self, seconds: float = 5.0) -> None:
        """Wait for what is in the pipe; the writers are dead."""
        if self.write_end >= 0:
            self.follow()
        self.thread.join(seconds)

    def last_line(self) -> str:
        """The last line, cut."""
        text = self.path.read_text(encoding="utf-8", errors="replace")[-1000:].strip()
        return text.splitlines()[-1][:300] if text else "nothing printed"

    def _copy(self) -> None:
        with os.fdopen(self.read_end, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 16):
                with suppress(OSError):  # a full disk must not stop the pipe, or the writer hangs
                    self._write(data)
        self.file.close()

    def _write(self, data: bytes) -> None:
        if self.file.tell() > self.limit_bytes:
            self.file.close()
            self.path.replace(self.older if self.head.exists() else self.head)
            self.file = self.path.open("ab", buffering=0)
        self.file.write(data)
