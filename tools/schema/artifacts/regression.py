"""RegressionReport: what the gate found, axis by axis, each with the negative control that had to fail."""

from __future__ import annotations

from statistics import median
from typing import Annotated, Literal

from pydantic import Field

from samebits.tools.schema.artifacts.base import Environment, Manifest
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.base import SCHEMA_VERSION, Model

AxisName = Literal[
    "repeat",
    "batch",
    "order",
    "lengths",
    "graph_buckets",
    "decode_prefill",
    "chunked_prefill",
    "prefix_hit",
    "reload",
    "preemption",
    "logprob_mode",
    "eager_graph",
    "ranks",
    "restart",
    "trainer_repeat",
    "micro_batch",
    "layout",
    "gradients",
    "checkpointing",
    "trainer_rollout",
]
"""In the order in which they run."""
THROUGHPUT = "throughput"
"""Can be asked for and required like an axis; it compares times, not bits."""


class Compared(Model):
    """One other way, compared with the plain one by bits."""

    words: str
    """The two ways."""
    stats: GapStats
    due: int
    """Valid tokens that this way had to give; fewer compared is too few."""
    ulps: tuple[int, ...]
    """Tokens by distance: [0] equal bits, [k] from 2**(k-1) to 2**k - 1 units in the last place."""


class ControlRow(Model):
    """The same check with the computation disturbed: it must fail."""

    disturbed: str
    """What was disturbed, and how."""
    stats: GapStats
    ulps: tuple[int, ...]

    @property
    def failed(self) -> bool:
        """The check saw the disturbance."""
        return self.stats.nonzero > 0


class Exact(Model):
    """Every way that took effect gave the same bits, enough tokens were compared, and the control failed."""

    status: Literal["exact"] = "exact"
    tokens: int
    """Fewest tokens that any of its ways compared."""


class Differs(Model):
    status: Literal["differs"] = "differs"
    way: str
    stats: GapStats


class TooFew(Model):
    """Fewer tokens were compared than the gate asks for, or than this way had to give."""

    status: Literal["too_few"] = "too_few"
    way: str
    tokens: int
    needed: int


class Vacuous(Model):
    """The control did not fail: this check proves nothing. Red."""

    status: Literal["vacuous"] = "vacuous"
    reason: str


class NotRun(Model):
    status: Literal["not_run"] = "not_run"
    reason: str


class TimedOut(Model):
    """Its time was over before it was done: no verdict. Red."""

    status: Literal["timed_out"] = "timed_out"
    limit_s: float


class Broke(Model):
    """Its side ended or broke on the way: no verdict. Red."""

    status: Literal["broke"] = "broke"
    reason: str


Outcome = Annotated[Exact | Differs | TooFew | Vacuous | NotRun | TimedOut | Broke, Field(discriminator="status")]


class AxisRow(Model):
    """One axis."""

    name: AxisName
    required: bool
    """Then "not run" is a failure."""
    outcome: Outcome
    compared: tuple[Compared, ...] = ()
    skipped: tuple[str, ...] = ()
    """Ways that did not take effect, with the reason; they count for nothing."""
    control: ControlRow | None = None
    seconds: float

    @property
    def red(self) -> bool:
        """Whether this axis alone makes the gate red."""
        return self.outcome.status in ("differs", "too_few", "vacuous", "timed_out", "broke") or (
            self.required and self.outcome.status == "not_run"
        )


class Rate(Model):
    """Sampled tokens per second of one engine, run by run, its first run left out."""

    what: str
    """Which engine."""
    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle run, or the mean of the two in the middle."""
        return median(self.runs)


class Throughput(Model):
    """The engine of the experiment against the same engine without samebits, in this job."""

    own: Rate
    stock: Rate
    bar: float
    """Smallest ratio that passes."""
    required: bool
    seconds: float

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return self.own.median / self.stock.median

    @property
    def span(self) -> tuple[float, float]:
        """Smallest and largest ratio that any two runs give."""
        return min(self.own.runs) / max(self.stock.runs), max(self.own.runs) / min(self.stock.runs)

    @property
    def verdict(self) -> Literal["above", "below", "unclear"]:
        """Unclear: the span holds the bar, so the noise of this machine decides and not the engine."""
        low, high = self.span
        return "above" if low >= self.bar else "below" if high < self.bar else "unclear"


class NoThroughput(Model):
    """Why it was not measured."""

    reason: str
    required: bool = False


class Green(Model):
    """At least one axis is exact and none is red."""

    kind: Literal["green"] = "green"
    tokens: int
    """Comparisons of one token made, all axes together."""
    axes: tuple[AxisName, ...]
    """Proved."""


class Red(Model):
    """Some bits differ."""

    kind: Literal["red"] = "red"
    reasons: tuple[str, ...]


class Unjudged(Model):
    """Nothing was seen to differ, yet something that had to be proved was not."""

    kind: Literal["unjudged"] = "unjudged"
    reasons: tuple[str, ...]


class RegressionReport(Manifest):
    """gate.safetensors holds, float32 [N] in the rollout's order: `reported`, `plain` (the engine, tokens forced),
    `trainer` where it was asked; and `valid` bool [N]. report.html and junit.xml say the same for people and CI."""

    kind: Literal["regression"] = "regression"
    verdict: Annotated[Green | Red | Unjudged, Field(discriminator="kind")]
    axes: tuple[AxisRow, ...]
    throughput: Throughput | NoThroughput | None = None
    """None: not asked for."""
    comparison: ControlRow
    """The control of the comparison itself: one stored bit flipped, which must be seen as exactly one token."""
    sequences: int
    tokens: int
    """Valid sampled tokens of the rollout."""
    min_tokens: int
    sides: dict[str, tuple[str, ...]]
    """What really ran, by role."""
    engine: bool = True
    """The rollout side could be asked; False: the rollout is a file of rows."""
    generated: bool = False
    """The rollout was sampled by this gate, or by an earlier piece of it."""
    subject: str = ""
    """sha256 of what was gated: settings of the sides, workload, weights, machine, packages, kernels. Pieces of a gate
    merge where this and the rollout are equal."""
    seconds: float
    """Of all its pieces."""


class Lock(Model):
    """samebits.lock: what was proved, and in which environment. Written for a green gate alone."""

    schema_version: int = SCHEMA_VERSION
    contract_version: int
    """Of kernels/CONTRACT.md."""
    gate: str
    """sha256 of the manifest of the RegressionReport."""
    axes: dict[str, int]
    """Axes proved, with the fewest tokens any of their ways compared."""
    not_proved: dict[str, str]
    """Axes that did not run or were not asked for, with the reason."""
    settings: dict[str, dict[str, str]]
    """By section: what of samebits.toml the bits depend on."""
    proved: dict[str, dict[str, str]]
    """By role: what the adapters compare at start-up (kernels/adapters/setup/proved.py): contract version, digest of
    the kernels, machine, driver, packages, variables."""
    engine_sets: dict[str, str] = {}
    """Variables that the engine set in its own process beyond those it was started with. A training loop that has one
    in its process has them too."""
    environment: Environment
    sides: dict[str, tuple[str, ...]]
    """What really ran, by role: versions, runner, attention, linears, CPU features, variables."""
