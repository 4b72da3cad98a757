"""Every relative link of every page leads somewhere, in the checkout and in the wheel's skill folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

LINK = re.compile(
    r"(?<!\\)!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)"  # [text](target), ![text](target "title")
    r"|^\[[^\]]+\]:\s*(\S+)"  # [name]: target
    r'|(?:href|src)="([^"]+)"',
    re.MULTILINE,
)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """The page without code, where brackets mean something else."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """The anchors that a repository browser gives to the headings of a page."""
    found: dict[str, int] = {}
    names = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", FENCE.sub("", text), re.MULTILINE):
        label = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", label.lower()).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        names.add(f"{slug}-{count}" if count else slug)
    return names


def broken_links(folder: Path, pages: Iterable[Path]) -> list[str]:
    broken = []
    for page in pages:
        text = (folder / page).read_text(encoding="utf-8")
        for groups in LINK.findall(prose(text)):
            target = next(group for group in groups if group)
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            path, _, anchor = target.partition("#")
            place = (folder / page).parent / path if path else folder / page
            if not place.exists() or folder.resolve() not in [place.resolve(), *place.resolve().parents]:
                broken.append(f"{page}: {target}")
            elif anchor and place.suffix == ".md" and anchor not in anchors(place.read_text(encoding="utf-8")):
                broken.append(f"{page}: {target} (no such heading)")
    return broken


def test_every_link_in_the_checkout_resolves(root: Path, tracked: list[Path]) -> None:
    assert broken_links(root, [name for name in tracked if name.suffix == ".md"]) == []


def test_planted_broken_links_are_seen(tmp_path: Path) -> None:
    page = (
        "# One\n[a](other.md) [b](gone.md) [c](#one) [d](#two) [e](other.md#part-2) [f](other.md#part-3)\n"
        "[g](https://example.com/x) `[h](code.md)` [i](../outside.md) [j]\n\n[j]: nowhere.md\n"
        "```\n[k](fenced.md)\n```\n"
    )
    (tmp_path / "site").mkdir()
    (tmp_path / "outside.md").write_text("outside\n")
    (tmp_path / "site" / "page.md").write_text(page)
    (tmp_path / "site" / "other.md").write_text("## Part 2\n")
    assert broken_links(tmp_path / "site", [Path("page.md")]) == [
        "page.md: gone.md",
        "page.md: #two (no such heading)",
        "page.md: other.md#part-3 (no such heading)",
        "page.md: ../outside.md",
        "page.md: nowhere.md",
    ]
