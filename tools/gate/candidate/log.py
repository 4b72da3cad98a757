"""What a candidate and its compiler print: taken from a pipe, bounded, and kept in two files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

LIMIT_BYTES = 1 << 20


class Log:
    """PATH holds the last up to LIMIT_BYTES, PATH with .1 in front of its suffix what was before; the rest is gone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_end, self.write_end = os.pipe()
        self.thread = threading.Thread(target=self._copy, daemon=True)

    def follow(self) -> None:
        """Begin, once the writer has its end."""
        os.close(self.write_end)
        self.thread.start()

    def close(self) -> None:
        """Wait for what is in the pipe; the writers are dead."""
        if self.thread.is_alive():
            self.thread.join(5)

    def last_line(self) -> str:
        """The last line, cut."""
        text = read(self.path)[-1000:].strip()
        return text.splitlines()[-1][:300] if text else "nothing printed"

    def _copy(self) -> None:
        file = self.path.open("ab", buffering=0)
        with os.fdopen(self.read_end, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 16):
                try:
                    if file.tell() > LIMIT_BYTES:
                        file.close()
                        self.path.replace(self.path.with_suffix(".1.txt"))
                        file = self.path.open("ab", buffering=0)
                    file.write(data)
                except OSError:
                    continue  # a full disk must not stop the pipe, or the writer hangs
        file.close()


def read(path: Path) -> str:
    """Both files, the older first."""
    found = [p.read_text(encoding="utf-8", errors="replace") for p in (path.with_suffix(".1.txt"), path) if p.is_file()]
    return "".join(found)
