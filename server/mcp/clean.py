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
KEPT = frozenset("\n\t")
CUT = " [cut]"


def clean(text: str, limit: int, *, lines: bool = True) -> str:
    """`text` without terminal escapes, control, direction and other unseen characters, cut to `limit` characters.

    Args:
        lines: keep newlines and tabs; else each becomes one space.
    """
    text = ESCAPE.sub("", text[: 4 * limit]).replace("\r\n", "\n").replace("\r", "\n")
    text = "".join(char for char in text if char in KEPT or unicodedata.category(char) not in HIDDEN)
    if not lines:
        text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - len(CUT)] + CUT


def tail(text: str, limit: int) -> str:
    """The end of a cleaned log, at most `limit` characters, from the beginning of a line."""
    text = clean(text[-4 * limit :], 4 * limit)
    if len(text) <= limit:
        return text
    return "[cut] " + text[-limit:].partition("\n")[2]
