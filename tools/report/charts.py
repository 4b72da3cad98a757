"""Charts as inline SVG, drawn from plain numbers. Colours come from the page's style sheet, so light and dark both
work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 200, 56, 22, 10


def _frame(body: list[str], label: str, height: int = HEIGHT) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(body)}</svg>"
    )


def token_differences(before: Sequence[float], after: Sequence[float], label: str) -> str:
    """Per-token |difference| in nats on a logarithmic scale; exact zeros stand on a line of their own at the bottom."""
    positive = [value for value in [*before, *after] if value > 0 and math.isfinite(value)]
    low = math.floor(math.log10(min(positive))) if positive else -8
    high = max(low + 1, math.ceil(math.log10(max(positive))) if positive else -1)
    zero_y = HEIGHT - BOTTOM - 6
    plot_bottom = zero_y - 18

    def y(value: float) -> float:
        if value <= 0:
            return zero_y
        return plot_bottom - (math.log10(value) - low) / (high - low) * (plot_bottom - TOP)

    body = [
        f'<line class="axis" x1="{LEFT}" y1="{zero_y}" x2="{WIDTH - 8}" y2="{zero_y}"/>',
        f'<text x="{LEFT - 8}" y="{zero_y + 4}" text-anchor="end">0</text>',
    ]
    step = max(1, (high - low) // 4)
    for exponent in range(low, high + 1, step):
        line = y(10.0**exponent)
        body.append(f'<line class="grid" x1="{LEFT}" y1="{line:.1f}" x2="{WIDTH - 8}" y2="{line:.1f}"/>')
        body.append(f'<text x="{LEFT - 8}" y="{line + 4:.1f}" text-anchor="end">1e{exponent}</text>')
    count = max(len(before), len(after), 2)
    for values, css in ((before, "before"), (after, "after")):
        for index, value in enumerate(values):
            x = LEFT + 4 + index / (count - 1) * (WIDTH - LEFT - 16)
            body.append(f'<circle class="{css}" cx="{x:.1f}" cy="{y(value):.1f}" r="1.8"/>')
    body.append(f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">sampled token</text>')
    return _frame(body, label)


def bars(rows: Sequence[tuple[str, float, str]], label: str, css: str = "bar") -> str:
    """Horizontal bars: (name, share from 0 to 1, text at the end)."""
    pitch, name_width = 18, 300
    height = pitch * len(rows) + 8
    body = []
    track = WIDTH - name_width - 110
    for number, (name, share, text) in enumerate(rows):
        y = 4 + number * pitch
        length = max(0.0, min(1.0, share)) * track
        body.append(f'<text x="{name_width - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        body.append(f'<rect class="track" x="{name_width}" y="{y + 2}" width="{track}" height="{pitch - 6}"/>')
        if length:
            body.append(
                f'<rect class="{css}" x="{name_width}" y="{y + 2}" width="{max(length, 2):.1f}" height="{pitch - 6}"/>'
            )
        body.append(f'<text x="{WIDTH - 100}" y="{y + 12}">{escape(text)}</text>')
    return _frame(body, label, height)


def ulps(series: Sequence[tuple[str, str, Sequence[int]]], label: str) -> str:
    """Histogram of distances: (css class, name, counts), counts[0] of equal bits, counts[k] from 2**(k-1) to 2**k - 1.

    Heights are logarithmic, so that one token among thousands shows.
    """
    buckets = max((len(counts) for _, _, counts in series), default=0) or 1
    most = max((max(counts, default=0) for _, _, counts in series), default=0)
    scale = (HEIGHT - BOTTOM - TOP - 14) / math.log2(most + 1) if most else 0.0
    base, pitch = HEIGHT - BOTTOM, (WIDTH - LEFT - 8) / buckets
    width = max(2.0, pitch / len(series) - 3) if series else pitch
    body = [f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - 8}" y2="{base}"/>']
    every = max(1, math.ceil(40 / pitch))
    for bucket in range(buckets):
        middle = LEFT + (bucket + 0.5) * pitch
        if bucket % every == 0:
            name = str(bucket) if bucket < 2 else f"2^{bucket - 1}"
            body.append(f'<text x="{middle:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{name}</text>')
        for number, (css, name, counts) in enumerate(series):
            count = counts[bucket] if bucket < len(counts) else 0
            if count:
                height, x = math.log2(count + 1) * scale, LEFT + bucket * pitch + 2 + number * (width + 2)
                tip = f"<title>{escape(name)}: {count}</title>"
                body.append(
                    f'<rect class="{css}" x="{x:.1f}" y="{base - height:.1f}" width="{width:.1f}" '
                    f'height="{height:.1f}">{tip}</rect>'
                )
                if pitch >= 40:
                    body.append(
                        f'<text x="{x + width / 2:.1f}" y="{base - height - 3:.1f}" text-anchor="middle">{count}</text>'
                    )
    return _frame(body, label)


def ratios(rows: Sequence[tuple[str, float, str]], label: str) -> str:
    """Bars to either side of 1 on a logarithmic scale, each below its name: (name, ratio, text at the end)."""
    pitch, head, text_width = 40, 24, 170
    widest = max([1.0, *(abs(math.log2(ratio)) for _, ratio, _ in rows if ratio > 0)])
    middle = (WIDTH - text_width) / 2
    unit, height = (middle - 24) / widest, head + pitch * len(rows) + 4
    body = []
    for power in range(-math.floor(widest), math.floor(widest) + 1):
        x, css = middle + power * unit, "axis" if power == 0 else "grid"
        name = f"{2**power}\u00d7" if power >= 0 else f"1/{2**-power}\u00d7"
        body.append(f'<line class="{css}" x1="{x:.1f}" y1="{head - 6}" x2="{x:.1f}" y2="{height - 4}"/>')
        body.append(f'<text x="{x:.1f}" y="{head - 10}" text-anchor="middle">{name}</text>')
    for number, (name, ratio, text) in enumerate(rows):
        y = head + number * pitch
        end = middle + math.log2(ratio) * unit if ratio > 0 else 24.0
        left, width = min(middle, end), max(abs(end - middle), 1.5)
        body.append(f'<text class="name" x="24" y="{y + 11}">{escape(name)}</text>')
        body.append(
            f'<rect class="{"gain" if ratio >= 1 else "loss"}" x="{left:.1f}" y="{y + 17}" width="{width:.1f}" '
            f'height="12"><title>{escape(name)}: {ratio:.3f}</title></rect>'
        )
        body.append(f'<text x="{WIDTH - text_width}" y="{y + 27}">{ratio:.2f}\u00d7  {escape(text)}</text>')
    return _frame(body, label, height)
