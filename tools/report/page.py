"""Renders report pages: one HTML file each, no network, light and dark."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from samebits.tools.report import charts

if TYPE_CHECKING:
    from samebits.tools.schema.artifacts.demo import DemoManifest
    from samebits.tools.schema.sites import Site

TEMPLATES = Path(__file__).with_name("templates")


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.3g}"


def _site(site: Site) -> str:
    return str(site)


def environment() -> Environment:
    """The one template environment: everything that is not markup made here is escaped."""
    env = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    env.filters |= {"number": _number, "site": _site}
    env.globals["style"] = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))
    try:
        env.globals["version"] = version("samebits")
    except PackageNotFoundError:
        env.globals["version"] = "(not installed)"
    return env


def demo(report: DemoManifest) -> str:
    """The demo's page."""
    layers = [
        (name, differing / rows if rows else 0.0, f"{differing}/{rows}") for name, rows, differing in report.layers
    ]
    return (
        environment()
        .get_template("demo.html.jinja")
        .render(
            report=report,
            tokens_chart=Markup(
                charts.token_differences(report.before, report.after, "logprob difference of every sampled token, nats")
            ),
            layers_chart=Markup(charts.bars(layers, "share of token rows that differ, by module")),
        )
    )
