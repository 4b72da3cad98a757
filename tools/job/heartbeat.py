"""A worker's heartbeat: the time of a file in the job folder, renewed as long as Python runs in this process."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

EVERY_S = 2.0


def beat(folder: Path, every_s: float = EVERY_S) -> threading.Event:
    """Renew FOLDER/heartbeat from a thread of its own, until the event given back is set or the process ends.

    Code that holds Python's lock, or a stopped process, is seen by it; code that waits without the lock is not: for
    that there is the age of the last progress.
    """
    path, ended = folder / "heartbeat", threading.Event()

    def run() -> None:
        while True:
            with suppress(OSError):  # the folder may be gone; a full disk has room for a time
                path.touch()
                os.utime(path)
            if ended.wait(every_s):
                return

    threading.Thread(target=run, name="heartbeat", daemon=True).start()
    return ended
