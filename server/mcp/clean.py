"""Makes text from models, logs and compilers safe to hand on: no control characters, no invisible ones, bounded length.

It stays data: it goes into fields whose names or labels say so, never into descriptions, instructions or prompts.
"""

from __future__ import annotations

import re
import unicodedata

CELL_CHARS = 400
SUMMARY_CHARS = 4000
LOG_CHARS = 8000
ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
HIDDEN = frozenset(("Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"))
UNSEEN = frozenset(
    chr(code)
    for first, last in (
        (0x034F, 0x034F),  # combining grapheme joiner
        (0x115F, 0x1160),  # Hangul fillers, here and below
        (0x17B4, 0x17B5),  # Khmer inherent vowels
        (0x180B, 0x180F),  # Mongolian variation selectors
        (0x2800, 0x2800),  # braille without a dot
        (0x3164, 0x3164),
        (0xFE00, 0xFE0F),  # variation selectors, which can carry whole texts
        (0xFFA0, 0xFFA0),
        (0xE0100, 0xE01EF),
    )
    for code in range(first, last + 1)
)
"""Of categories that are seen otherwise."""
KEPT = frozenset("\n\t")
CUT = " [cut]"


def clean(text: str, limit: int, *, lines: bool = True) -> str:
    """`text` without terminal escapes, control, direction and other unseen characters, cut to `limit` characters.

    Args:
        lines: keep newlines and tabs; else each becomes one space.
    """
    text = ESCAPE.sub("", text[: 4 * limit]).replace("\r\n", "\n").replace("\r", "\n")
    text = "".join(char for char in text if char in KEPT or is_seen(char))
    if not lines:
        text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - len(CUT)] + CUT


def is_seen(char: str) -> bool:
    """Whether a reader would notice that it is there."""
    return unicodedata.category(char) not in HIDDEN and char not in UNSEEN


def quoted(text: str) -> str:
    """Foreign text inside a sentence of ours, with marks that it cannot end itself."""
    return f"<untrusted>{text.replace('</', '< /')}</untrusted>"


def tail(text: str, limit: int) -> str:
    """The end of a cleaned log, at most `limit` characters, from the beginning of a line."""
    text = clean(text[-4 * limit :], 4 * limit)
    if len(text) <= limit:
        return text
    return "[cut] " + text[-limit:].partition("\n")[2]
