"""A headless Chromium, driven over its DevTools pipe: nothing but the standard library and the browser itself."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WAIT_S = 120.0
THERE = """window.stays === undefined && document.readyState == 'complete' && new Promise(
    (done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"""
"""The next page is there and has been drawn: before that it may lose a click."""
KEYS = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32}


def chromium() -> str | None:
    """The browser's path; None where there is none."""
    named = os.environ.get("SAMEBITS_BROWSER")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def required() -> bool:
    """Whether a missing browser is a failure: in continuous integration it is."""
    return bool(os.environ.get("CI")) or os.environ.get("SAMEBITS_REQUIRE_BROWSER") == "1"


class Browser:
    """One browser with one page."""

    def __init__(self) -> None:
        path = chromium()
        assert path is not None, "no chromium"
        # Not where TMPDIR says: it makes a socket there, whose path has 107 bytes at most.
        self.profile = tempfile.TemporaryDirectory("", "samebits-chromium-", "/tmp", ignore_cleanup_errors=True)
        ours, theirs = zip(*(self._ends(os.pipe(), flip) for flip in (True, False)), strict=True)
        self.into, self.out = ours

        def pipes() -> None:
            # DevTools reads descriptor 3 and writes 4.
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        command = [
            path, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "--no-first-run",
            "--no-default-browser-check", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
            "--disable-background-networking", "--disable-sync", "--mute-audio", "--hide-scrollbars",
            "--font-render-hinting=none", "--lang=en", *(["--no-sandbox"] if os.getuid() == 0 else []), "about:blank",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=pipes, pass_fds=(3, 4), start_new_session=True, env=os.environ | {"TMPDIR": self.profile.name},
        )  # fmt: skip
        for end in theirs:
            os.close(end)
        self.buffer = b""
        self.counter = 0
        self.session = ""
        self.events: list[dict[str, Any]] = []
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """One page."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")
        self.size(1280, 900)

    @staticmethod
    def _ends(pipe: tuple[int, int], ours_writes: bool) -> tuple[int, int]:
        """(our end, its end), both far from 3 and 4."""
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipe]
        for end in pipe:
            os.close(end)
        return (high[1], high[0]) if ours_writes else (high[0], high[1])

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events meanwhile are kept."""
        self.counter += 1
        message: dict[str, Any] = {"id": self.counter, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.into, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + WAIT_S
        while True:
            found = self._next(until)
            if found.get("id") == self.counter:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.out], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self.out, 1 << 20)
            assert data, "the browser has ended"
            self.buffer += data
        raw, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def value(self, expression: str) -> Any:
        """A JavaScript expression's value."""
        done = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def until(self, expression: str, seconds: float = WAIT_S) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self._now(expression):
            assert time.monotonic() < end, f"never true: {expression}\n{self.text()[:2000]}"
            time.sleep(0.05)

    def _now(self, expression: str) -> bool:
        """Whether it is true now; a page that is just being left has no answer."""
        try:
            return bool(self.value(expression))
        except AssertionError as gone:
            if any(words in str(gone) for words in ("navigated or closed", "context was destroyed", "was collected")):
                return False
            raise

    def open(self, address: str) -> None:
        """Go to a page and wait until it is there, and not what was shown before."""
        self.value("window.stays = true")
        self.ask("Page.navigate", url=address)
        self.until(f"location.href.startsWith({json.dumps(address[:22])}) && {THERE}")

    def text(self) -> str:
        """What the page says."""
        return str(self.value("document.body.innerText"))

    def place(self, selector: str) -> tuple[float, float]:
        """The middle of an element, scrolled into view."""
        quoted = json.dumps(selector)
        box = self.value(
            f"(() => {{ const e = document.querySelector({quoted}); if (!e) return null; "
            "e.scrollIntoView({block: 'nearest'}); const b = e.getBoundingClientRect(); "
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        assert box is not None, f"no {selector}"
        return float(box[0]), float(box[1])

    def click(self, selector: str) -> None:
        """A click with the mouse, where the element is."""
        x, y = self.place(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            buttons = {"button": "left", "clickCount": 1} if kind != "mouseMoved" else {}
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **buttons)

    def leave(self, selector: str) -> None:
        """Click something that leads to another page, and wait for that."""
        self.value("window.stays = true")
        self.click(selector)
        self.arrives()

    def arrives(self) -> None:
        """Wait for another page than the one that was marked."""
        self.until(THERE)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.ask("Input.insertText", text=text)

    def press(self, key: str, shift: bool = False) -> None:
        """One key."""
        text = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
        code = KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        down = {"text": text} if text else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **common, **down)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def focused(self) -> str:
        """Id, value or text of what has the focus."""
        return str(self.value("(e => e.id || e.value || e.innerText || e.tagName)(document.activeElement)"))

    def size(self, width: int, height: int, scale: float = 1.0) -> None:
        """The window."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
            mobile=False,
        )  # fmt: skip

    def dark(self, on: bool) -> None:
        """What the page is told the person likes."""
        value = "dark" if on else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def screenshot(self, path: Path, *, whole: bool = False, part: tuple[int, int] | None = None) -> bytes:
        """A PNG of what is seen, of the whole page, or of its upper left part (width, height)."""
        options: dict[str, Any] = {"format": "png"}
        if whole:
            box = self.ask("Page.getLayoutMetrics")["cssContentSize"]
            part = box["width"], box["height"]
        if part:
            clip = {"x": 0, "y": 0, "width": part[0], "height": part[1], "scale": 1}
            options |= {"captureBeyondViewport": whole, "clip": clip}
        data = base64.b64decode(self.ask("Page.captureScreenshot", **options)["data"])
        path.write_bytes(data)
        return data

    def complaints(self) -> list[str]:
        """What the browser's console said: refused styles, scripts, failed loads."""
        self.value("1")
        entries = [event["params"]["entry"] for event in self.events if event.get("method") == "Log.entryAdded"]
        return [f"{entry['level']}: {entry['text']}" for entry in entries if entry["level"] in ("error", "warning")]

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        for end in (self.into, self.out):
            os.close(end)
        self.profile.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
