"""One line of code as safe markup: words of the language, what changed in it, and what the eye would not see."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup, escape
from pygments.token import Comment, Keyword, Name, Number, String, Token

from samebits.tools.report.difflines import is_odd, name_of

if TYPE_CHECKING:
    from pygments.lexer import Lexer

    from samebits.tools.report.difflines import Spans

LEXERS = {"py": "python", "toml": "toml", "cpp": "cpp", "cu": "cuda"}
CLASSES = (
    (Comment, "c"),
    (String, "s"),
    (Number, "n"),
    (Keyword, "k"),
    (Name.Decorator, "d"),
    (Name.Function, "d"),
    (Name.Class, "d"),
)
Colours = list[list[tuple[int, int, str]]]


@cache
def _lexer(name: str) -> Lexer:
    from pygments.lexers import get_lexer_by_name

    return get_lexer_by_name(name, stripnl=False, ensurenl=False)


def colours(path: str, lines: list[str]) -> Colours:
    """Per line the ranges of characters that have a colour; none for a language that is not known."""
    name = LEXERS.get(path.rpartition(".")[2])
    found: Colours = [[] for _ in lines]
    if name is None:
        return found
    line = start = 0
    for _, kind, text in _lexer(name).get_tokens_unprocessed("\n".join(lines)):
        css = next((css for token, css in CLASSES if kind in token), "") if kind is not Token.Text else ""
        for number, part in enumerate(text.split("\n")):
            if number:
                line, start = line + 1, 0
            if css and part:
                found[line].append((start, start + len(part), css))
            start += len(part)
    return found


def markup(text: str, marks: Spans, coloured: list[tuple[int, int, str]]) -> Markup:
    """The line; `marks` are the ranges that the other side does not have."""
    borders = {0, len(text)}
    for first, last in [*marks, *((start, end) for start, end, _ in coloured)]:
        borders |= {first, last}
    borders |= {place + step for place, char in enumerate(text) if is_odd(char) for step in (0, 1)}
    ordered = sorted(border for border in borders if border <= len(text))
    parts: list[Markup] = []
    for first, last in pairwise(ordered):
        piece = text[first:last]
        css = next((css for start, end, css in coloured if start <= first < end), "")
        if len(piece) == 1 and is_odd(piece):
            name = name_of(piece)
            shown = name.split()[0] if not piece.isprintable() or piece.isspace() else piece
            inner = Markup('<b class="odd" title="{}">{}</b>').format(name, shown)
        else:
            inner = Markup('<i class="{}">{}</i>').format(css, piece) if css else escape(piece)
        marked = any(start <= first < end for start, end in marks)
        parts.append(Markup("<mark>{}</mark>").format(inner) if marked else inner)
    return Markup("").join(parts)
