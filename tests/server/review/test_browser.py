"""The page as a person uses it: a real Chromium, mouse and keyboard, light and dark, wide and narrow."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samebits.tools.schema import reviews
from samebits.tools.schema.proposals import open_proposal

LUMINANCE = """
(() => {
  const parts = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const found = parts(getComputedStyle(e).backgroundColor);
      if (found.length == 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.getClientRects().length || e.closest("script, svg, .unseen")) continue;
    const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const said = `${ratio.toFixed(2)} ${e.tagName}.${e.className}: ${walker.currentNode.data.trim().slice(0, 30)}`;
    if (ratio < 4.5) bad.push(said);
  }
  return [...new Set(bad)];
})()
"""
"""Texts whose contrast with what is behind them is below 4.5, as WCAG 2 computes it."""


@pytest.fixture(scope="module")
def base(person: Any, browser: Any) -> str:
    """The page, opened with the code; its address."""
    found: str = person.enter(browser)
    return found


@pytest.fixture
def opened(base: str, browser: Any, proposed: Callable[..., str]) -> str:
    """A fresh proposal, open in the browser; its id."""
    id = proposed()
    browser.size(1280, 900)
    browser.dark(False)
    browser.open(f"{base}/proposal/{id}")
    return id


def decided(project: Path, id: str) -> Any:
    return reviews.find(open_proposal(project / ".samebits" / "jobs" / id))


def shades(png: bytes) -> float:
    """Mean of the bytes of a PNG's rows: how light the picture is."""
    data, place = b"", 8
    while place < len(png):
        (size,) = struct.unpack(">I", png[place : place + 4])
        if png[place + 4 : place + 8] == b"IDAT":
            data += png[place + 8 : place + 8 + size]
        place += 12 + size
    width, height, _, colour = struct.unpack(">IIBB", png[16:26])
    raw, channels = zlib.decompress(data), {2: 3, 6: 4}[colour]
    step = 1 + width * channels
    lines = [bytearray(raw[row * step + 1 : (row + 1) * step]) for row in range(height)]
    kinds = [raw[row * step] for row in range(height)]
    before = bytearray(step - 1)
    total = 0
    for kind, line in zip(kinds, lines, strict=True):
        _unfilter(kind, line, before, channels)
        before = line
        total += sum(line[::97])
    return total / (height * len(lines[0][::97]))


def _unfilter(kind: int, line: bytearray, above: bytearray, step: int) -> None:
    """PNG's five filters (specification, section 9)."""
    for place in range(len(line)):
        left = line[place - step] if place >= step else 0
        up, corner = above[place], above[place - step] if place >= step else 0
        if kind == 4:
            guess = left + up - corner
            near = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
        else:
            near = (0, left, up, (left + up) // 2)[kind]
        line[place] = (line[place] + near) & 255


def test_a_person_approves_with_mouse_and_note(browser: Any, opened: str, project: Path) -> None:
    assert "waiting for you" in browser.text()
    browser.click("#note")
    browser.type("Read it all.")
    browser.leave("button[value=approved]")
    assert browser.value("document.querySelector('[role=status]').innerText").startswith("Approved by")
    review = decided(project, opened)
    assert (review.decision, review.note, review.surface) == ("approved", "Read it all.", "page")
    browser.leave(".crumb a")
    assert "approved" in browser.text()


def test_a_rejection_without_a_note_is_asked_for_one(browser: Any, opened: str, project: Path) -> None:
    browser.leave("button[value=rejected]")
    assert "without a note" in browser.value("document.querySelector('[role=alert]').innerText")
    assert decided(project, opened) is None
    assert browser.focused() == "note"
    browser.type("Take CALLS out.")
    browser.leave("button[value=rejected]")
    assert decided(project, opened).decision == "rejected"
    assert "Take CALLS out." in browser.text()


def test_all_of_it_works_from_the_keyboard(browser: Any, opened: str, project: Path) -> None:
    browser.press("Tab")
    assert browser.focused() == "Skip to the decision"
    browser.press("n")
    where = "(e => [e.closest('article').id, e.className, e.rowIndex])(document.activeElement)"
    seen = [browser.value(where)]
    for key in "nnnnp":
        browser.press(key)
        seen.append(browser.value(where))
    assert seen == [
        ["file-1", "added", 0], ["file-2", "added", 0], ["file-3", "added", 4], ["file-3", "changed", 8],
        ["file-3", "changed", 8], ["file-3", "added", 4],
    ]  # fmt: skip
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the place is seen"
    browser.press("g")
    browser.until("Math.abs(document.getElementById('gate').getBoundingClientRect().top) < 200")
    browser.press("d")
    assert browser.focused() == "note"
    browser.type("ngd: keys are text here")
    assert browser.value("note.value") == "ngd: keys are text here"
    browser.press("Escape")
    assert browser.value("document.activeElement == note") is False
    browser.press("d")
    browser.press("Tab")
    assert browser.focused() == "rejected"
    browser.press("Tab")
    assert browser.focused() == "approved"
    outline = browser.value("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus is seen"
    browser.value("window.stays = true")
    browser.press("Enter")
    browser.arrives()
    assert decided(project, opened).decision == "approved"


def test_no_key_alone_decides(browser: Any, opened: str, project: Path) -> None:
    browser.value("window.stays = true")
    for key in "abcdefghijklmnopqrstuvwxyz":
        browser.value("note.blur()")
        browser.press(key)
    browser.value("note.blur()")
    browser.press("Enter")
    assert browser.value("window.stays") is True
    assert decided(project, opened) is None


def test_both_columns_stand_side_by_side_with_numbers_and_marks(browser: Any, opened: str) -> None:
    row = "[...document.querySelectorAll('#file-3 tr.changed')].pop()"
    cells = browser.value(f"[...{row}.cells].map((c) => c.innerText)")
    assert cells == ["8", 'kernels = "none"  # for now', "9", 'kernels = ["kernels/norm"]  # for now']
    left, right = browser.value(f"[1, 3].map((n) => {row}.cells[n].getBoundingClientRect().x)")
    assert right - left > 400
    assert browser.value(f"[...{row}.querySelectorAll('td.del mark')].map((m) => m.innerText).join('')") == "none"
    assert "kernels" in browser.value(f"{row}.querySelector('td.add mark ~ mark').innerText")
    assert browser.value("document.querySelectorAll('svg.chart rect').length") == 2


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_can_be_read_in_light_and_dark_wide_and_narrow(
    browser: Any, opened: str, tmp_path: Path, dark: bool, width: int
) -> None:
    browser.dark(dark)
    browser.size(width, 844)
    assert browser.value("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out sideways"
    for place in (0, 0.5, 1):
        browser.value(f"scrollTo(0, document.body.scrollHeight * {place})")
        box = browser.value(
            "(b => [b.left, b.right, b.bottom])(document.querySelector('.buttons').getBoundingClientRect())"
        )
        assert box[0] >= 0
        assert box[1] <= width
        assert box[2] <= 845, "the buttons are in reach wherever one reads"
    assert browser.value(LUMINANCE) == []
    browser.value("scrollTo(0, 0)")
    assert len(browser.screenshot(tmp_path / "page.png")) > 10_000
    light = shades(browser.screenshot(tmp_path / "corner.png", part=(160, 120)))
    assert light < 100 if dark else light > 180


def test_the_other_pages_can_be_read_too(browser: Any, base: str, opened: str, stranger_page: str) -> None:
    for dark in (False, True):
        browser.dark(dark)
        for address in (f"{base}/", f"{base}/proposal/none", stranger_page):
            browser.open(address)
            assert browser.value(LUMINANCE) == []


@pytest.fixture
def stranger_page(base: str) -> str:
    """The same page by another name: no session there, so it asks for the code."""
    return base.replace("127.0.0.1", "localhost") + "/"


def test_a_contrast_that_is_too_low_would_be_seen(browser: Any, opened: str) -> None:
    browser.value("document.querySelector('h1').style.setProperty('color', 'rgb(200, 200, 200)')")
    assert any("H1" in text for text in browser.value(LUMINANCE))


def test_what_a_proposer_writes_runs_nothing(browser: Any, base: str, proposed: Callable[..., str]) -> None:
    evil = "</textarea><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
    id = proposed(why=evil)
    before = len(browser.complaints())
    browser.open(f"{base}/proposal/{id}")
    assert "owned" not in browser.value("document.title")
    assert evil in browser.text()
    assert browser.complaints()[before:] == [], "nothing was blocked: there was nothing to block"


def test_a_wrong_code_is_said_and_the_right_one_leads_to_the_page_that_was_asked_for(
    browser: Any, person: Any, stranger_page: str, proposed: Callable[..., str]
) -> None:
    id = proposed()
    browser.open(f"{stranger_page}proposal/{id}")
    browser.type("AAAA-AAAA")
    browser.value("window.stays = true")
    browser.press("Enter")
    browser.arrives()
    assert "That is not the code" in browser.text()
    browser.type(person.newest_code())
    browser.leave("button.primary")
    person.due += 1
    assert browser.value("location.pathname") == f"/proposal/{id}"
    assert "waiting for you" in browser.text()
