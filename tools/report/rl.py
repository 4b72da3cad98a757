"""The page of an RL run: verdict, curves of both arms, the table of corrections, what ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from samebits.tools.report import curves
from samebits.tools.report.curves import Curve
from samebits.tools.report.page import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from samebits.tools.schema.artifacts.rl import RlReport, Run, StepLine
    from samebits.tools.schema.results import Cell

FIGURES: tuple[tuple[str, str, bool, Callable[[StepLine], float]], ...] = (
    ("k3", "k3 KL between rollout and trainer, same weights", True, lambda line: line.gap.k3),
    ("max", "max |logprob difference|, same weights, nats", True, lambda line: line.gap.max),
    ("reward", "mean reward", False, lambda line: line.reward),
    ("gradient", "gradient norm before clipping", True, lambda line: line.gradient_norm),
    ("entropy", "mean of -logprob of the sampled tokens, nats", False, lambda line: line.entropy),
)
STALE: tuple[tuple[str, str, bool, Callable[[StepLine], float]], ...] = (
    ("staleness", "k3 KL between the stored rollout and the trainer of the update", True, lambda s: s.staleness.k3),
    ("effective", "effective sample size of the importance weights", False, lambda line: line.effective),
)
COLOUR = {"stock": 0, "exact": 1}


def page(report: RlReport) -> str:
    """The whole page."""
    return (
        environment()
        .get_template("rl.html.jinja")
        .render(
            report=report,
            verdict=verdict(report),
            charts=[Markup(svg) for svg in _charts(report).values()],
            rows=[row(run) for run in report.runs],
        )
    )


def plots(report: RlReport) -> dict[str, str]:
    """SVG files by name."""
    return {f"{name}.svg": curves.as_file(svg) for name, svg in _charts(report).items()}


def _charts(report: RlReport) -> dict[str, str]:
    if report.compared is not None:
        rows = [(row.name, (row.relative, row.bias, row.noise)) for row in report.compared.rows]
        names = ("|g - g*| / |g*|", "bias", "chance")
        return {"corrections": curves.dots("distance from the exact gradient", names, rows)}
    if report.what == "train":
        return {name: _of_arms(title, log, report.runs, value) for name, title, log, value in FIGURES}
    made = {}
    for arm in dict.fromkeys(run.arm for run in report.runs):
        runs = [run for run in report.runs if run.arm == arm]
        for name, title, log, value in (*STALE, FIGURES[2], FIGURES[0]):
            made[f"{name}-{arm}"] = curves.chart(
                f"{arm}: {title}",
                [Curve(f"lag {run.lag}", [value(s) for s in run.steps], k) for k, run in enumerate(runs)],
                logarithmic=log,
            )
    return made


def _of_arms(title: str, log: bool, runs: Sequence[Run], value: Callable[[StepLine], float]) -> str:
    lines = [Curve(run.arm, [value(step) for step in run.steps], COLOUR[run.arm]) for run in runs]
    return curves.chart(title, lines, logarithmic=log)


def verdict(report: RlReport) -> tuple[str, str]:
    """Style class and words."""
    if report.compared is not None:
        return "good", f"the exact trainer has the rollouts' bits ({report.compared.truth.tokens} tokens)"
    exact = [run for run in report.runs if run.arm == "exact"]
    if not exact:
        return "bad", "no exact arm"
    stopped = next((run for run in exact if run.not_exact), None)
    if stopped is not None:
        return "bad", f"the exact arm differs at step {len(stopped.steps)}"
    if any(run.unfinished for run in report.runs):
        return "bad", f"time was over: exact at each of {sum(run.exact_steps for run in exact)} steps so far"
    return "good", f"exact at each of {sum(run.exact_steps for run in exact)} steps of the exact arm"


def row(run: Run) -> dict[str, Cell]:
    """One run in a table."""
    steps = run.steps
    few = max(1, len(steps) // 10)
    first, last = steps[:few], steps[-few:]

    def mean(lines: Sequence[StepLine], value: Callable[[StepLine], float]) -> float:
        return float(f"{sum(value(line) for line in lines) / max(1, len(lines)):.4g}")

    return {
        "arm": run.arm,
        "lag": run.lag,
        "steps": len(steps),
        "exact steps": run.exact_steps,
        "max": max((line.gap.max for line in steps), default=float("nan")),
        "k3 first": mean(first, lambda line: line.gap.k3),
        "k3 last": mean(last, lambda line: line.gap.k3),
        "reward first": mean(first, lambda line: line.reward),
        "reward last": mean(last, lambda line: line.reward),
        "staleness k3": mean(last, lambda line: line.staleness.k3),
        "effective": mean(last, lambda line: line.effective),
        "s/step": mean(steps, lambda line: sum(line.seconds.values())),
    }
