"""Report pages: one file, nothing fetched, text escaped, an exact run and one that is not look different."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from samebits.tools.report import charts, page
from samebits.tools.schema.artifacts.demo import DemoManifest, DemoStep
from samebits.tools.schema.artifacts.gap import GapStats


def stats(nonzero: int) -> GapStats:
    return GapStats(tokens=4, nonzero=nonzero, nonfinite=0, max=0.5 * nonzero, mean=0.0, std=0.0, k3=0.0)


def report(*, exact: bool, text: str = "words") -> DemoManifest:
    return DemoManifest(
        model="tiny",
        steps=(DemoStep(number=1, title="gap", text=text, held=exact, stats=stats(3), seconds=1.0),),
        work=(),
        layers=(("model.layers.0", 4, 1),),
        before=(0.1, 0.0, 1e-7, 0.2),
        after=(0.0,) * 4,
        sides={"rollout": ("vllm",)},
        exact=exact,
        tokens=4,
    )


def test_the_verdict_says_what_the_run_was() -> None:
    assert "verdict: exact (4 tokens)" in page.demo(report(exact=True))
    assert "verdict: not exact (4 tokens)" in page.demo(report(exact=False))


def test_what_a_model_or_log_says_is_escaped() -> None:
    made = page.demo(report(exact=True, text='<script>alert("x")</script>'))
    assert "<script>" not in made
    assert "&lt;script&gt;" in made
    assert "<script>" not in charts.bars([("<script>", 0.5, "1/2")], "label")


def test_nothing_is_fetched() -> None:
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?://", page.demo(report(exact=True)))


def test_the_page_is_well_formed() -> None:
    class Checker(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            """A closed element of an SVG."""

    checker = Checker()
    checker.feed(page.demo(report(exact=True)))
    assert not checker.open


def test_exact_zeros_stand_on_their_own_line_and_differences_above_it() -> None:
    def height(value: float) -> float:
        svg = charts.token_differences([value, 1e-3], [], "label")
        return float(re.findall(r'<circle class="before" cx="[\d.]+" cy="([\d.]+)"', svg)[0])

    assert height(0.0) > height(1e-7) > height(1e-1)
