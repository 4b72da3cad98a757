"""Curves over steps as SVG: for a page, whose style sheet colours them, or as a file that brings its own colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 256, 64, 12, 46, 26
ZERO_GAP = 18
"""Pixels between the lowest decade of a logarithmic axis and the line of exact zeros."""
STYLE = """svg { background: #ffffff; font: 11px ui-monospace, monospace; } text { fill: #6a717b; }
.axis { stroke: #6a717b; } .grid { stroke: #dcdad3; } polyline { fill: none; stroke-width: 1.6; }
.c0 { stroke: #b4471f; } .c1 { stroke: #1f7a4d; }
.c2 { stroke: #2f5d9b; } .c3 { stroke: #8a5cb0; } .c4 { stroke: #a37f16; }
text.c0 { fill: #b4471f; } text.c1 { fill: #1f7a4d; } text.c2 { fill: #2f5d9b; }
text.c3 { fill: #8a5cb0; } text.c4 { fill: #a37f16; } text[class] { stroke: none; }
@media (prefers-color-scheme: dark) { svg { background: #1b1f24; } text { fill: #9aa1ab; } .axis { stroke: #9aa1ab; }
.grid { stroke: #31363d; } .c0 { stroke: #ef8a5e; } .c1 { stroke: #5fc795; } .c2 { stroke: #86b0ea; }
.c3 { stroke: #c39be6; } .c4 { stroke: #e0bd55; } text.c0 { fill: #ef8a5e; } text.c1 { fill: #5fc795; }
text.c2 { fill: #86b0ea; } text.c3 { fill: #c39be6; } text.c4 { fill: #e0bd55; } }"""
COLOURS = 5


@dataclass(slots=True, frozen=True)
class Curve:
    """One line; values that are not finite are left out."""

    name: str
    values: Sequence[float]
    colour: int


def chart(title: str, curves: Sequence[Curve], *, logarithmic: bool = False) -> str:
    """Values over their index from 0.

    Args:
        logarithmic: decades; what is 0 or below lies on a line of its own at the bottom.
    """
    found = [v for curve in curves for v in curve.values if math.isfinite(v) and (v > 0 or not logarithmic)]
    zeros = logarithmic and any(v <= 0 for curve in curves for v in curve.values)
    base = HEIGHT - BOTTOM
    bottom = base - (ZERO_GAP if zeros else 0)
    low, high = _limits(found, logarithmic)
    count = max([len(curve.values) for curve in curves] + [2])

    def y(value: float) -> float:
        if logarithmic and value <= 0:
            return base
        at = math.log10(value) if logarithmic else value
        return bottom - (at - low) / (high - low) * (bottom - TOP)

    body = [f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}"/>']
    body += [f'<text x="{LEFT - 8}" y="{base + 4}" text-anchor="end">0</text>'] if zeros else []
    for value, text in _ticks(low, high, logarithmic):
        at = y(value)
        body.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        body.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    place = LEFT
    for curve in curves:
        points = [
            f"{LEFT + i / (count - 1) * (WIDTH - LEFT - RIGHT):.1f},{y(v):.1f}"
            for i, v in enumerate(curve.values)
            if math.isfinite(v)
        ]
        css = f"c{curve.colour % COLOURS}"
        body.append(f'<polyline class="{css}" points="{" ".join(points)}"/>')
        body.append(f'<text class="{css}" x="{place}" y="34">{escape(curve.name)}</text>')
        place += 7 * len(curve.name) + 20
    body.append(f'<text x="{LEFT}" y="16">{escape(title)}</text>')
    body.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">0</text>')
    body.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">step {count - 1}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart curves" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(body)}</svg>'
    )


def dots(title: str, names: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Values on one logarithmic axis, a line per row, a colour per name; what is 0 or below stands at the left edge."""
    pitch, left = 20, 150
    height = TOP + pitch * len(rows) + BOTTOM
    low, high = _limits([v for _, values in rows for v in values if math.isfinite(v) and v > 0], True)

    def x(value: float) -> float:
        at = low if value <= 0 else math.log10(value)
        return left + 10 + (at - low) / (high - low) * (WIDTH - left - RIGHT - 20)

    body = []
    for value, text in _ticks(low, high, True):
        body.append(f'<line class="grid" x1="{x(value):.1f}" y1="{TOP}" x2="{x(value):.1f}" y2="{height - BOTTOM}"/>')
        body.append(f'<text x="{x(value):.1f}" y="{height - 8}" text-anchor="middle">{text}</text>')
    for number, (name, values) in enumerate(rows):
        y = TOP + pitch * (number + 0.5)
        body.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        body += [
            f'<circle class="c{k}" cx="{x(v):.1f}" cy="{y:.1f}" r="4" fill="none" stroke-width="2"/>'
            for k, v in enumerate(values)
            if math.isfinite(v)
        ]
    body.append(f'<text x="{left}" y="16">{escape(title)}</text>')
    place = left
    for k, label in enumerate(names):
        body.append(f'<text class="c{k}" x="{place}" y="34">{escape(label)}</text>')
        place += 7 * len(label) + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart curves" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(body)}</svg>'
    )


def as_file(svg: str) -> str:
    """The same with its colours, to stand alone."""
    head, _, rest = svg.partition("<title>")
    return f"{head}<style>{STYLE}</style><title>{rest}\n"


def _limits(values: Sequence[float], logarithmic: bool) -> tuple[float, float]:
    if not values:
        return (-8.0, 0.0) if logarithmic else (0.0, 1.0)
    if logarithmic:
        decades = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return float(decades[0]), float(max(decades[1], decades[0] + 1))
    low, high = min(0.0, *values), max(values)
    return low, high if high > low else low + 1.0


def _ticks(low: float, high: float, logarithmic: bool) -> list[tuple[float, str]]:
    if logarithmic:
        step = max(1, round((high - low) / 5))
        return [(10.0**e, f"1e{e}") for e in range(int(low), int(high) + 1, step)]
    return [(low + k * (high - low) / 4, f"{low + k * (high - low) / 4:.3g}") for k in range(5)]
