"""The gate's artifact with its pages, and samebits.lock where it is green."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from samebits.kernels.adapters.setup import engine_args, machine
from samebits.kernels.contract_version import CONTRACT_VERSION
from samebits.tools.gate.regression import judge
from samebits.tools.report import gate as page
from samebits.tools.report import junit
from samebits.tools.schema.artifacts.regression import AxisName, Green, Lock, RegressionReport
from samebits.tools.store import artifact, fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from samebits.tools.gate.regression.bench import Bench
    from samebits.tools.gate.regression.pieces import Earlier
    from samebits.tools.schema.artifacts.regression import AxisRow, NoThroughput, Throughput
    from samebits.tools.schema.base import Model
    from samebits.tools.schema.experiment import Experiment

LOCK = "samebits.lock"
UNASKED = "not asked for"
ROLLOUT = ("side", "dtype", "kernels", "eager", "logprobs", "max_model_len", "env", "engine")
TRAINER = ("side", "dtype", "kernels", "attention", "layout", "micro_batch", "logprob", "env", "options")


@dataclass(slots=True, frozen=True)
class Run:
    """All that was found."""

    bench: Bench
    rows: tuple[AxisRow, ...]
    throughput: Throughput | NoThroughput | None
    prints: Mapping[str, Mapping[str, str]]
    """See subject.py."""
    subject: str
    before: Earlier | None
    """The piece this one went on from."""
    seconds: float


def write(run: Run) -> tuple[RegressionReport, str]:
    """Write the artifact; returns it and its name below the job's folder."""
    bench, data = run.bench, run.bench.data
    sides = bench.sides
    comparison = judge.comparison_control(data.logprob_N, data.valid_N)
    report = RegressionReport(
        verdict=judge.verdict(run.rows, comparison, run.throughput),
        axes=run.rows,
        throughput=run.throughput,
        comparison=comparison,
        sequences=len(data.sequences),
        tokens=bench.valid,
        min_tokens=sides.experiment.gate.min_tokens,
        sides=(dict(run.before.report.sides) if run.before is not None else {})
        | {
            role: (*(f"{key}: {value}" for key, value in done.facts.items()), *done.lines)
            for role, done in sides.described.items()
        },
        engine=bench.source.engine,
        generated=bench.source.generated,
        subject=run.subject,
        seconds=run.seconds + (run.before.report.seconds if run.before is not None else 0.0),
        made_from={"rollout": artifact.identity(bench.source.folder)}
        | ({} if run.before is None else {"earlier piece": artifact.identity(run.before.folder)}),
        environment=fingerprint.environment(os.environ | dict(sides.experiment.rollout.env)),
    )
    columns = {"rollout": "plain", "trainer": "trainer"}
    tensors = {"reported": data.logprob_N, "valid": data.valid_N}
    if run.before is not None:
        tensors = run.before.columns() | tensors
    tensors |= {columns[role]: scores.logprob_N for role, scores in bench.plain.items()}
    differences = (data.logprob_N.double() - tensors["trainer"].double()).abs() if "trainer" in tensors else None
    texts = {
        "report.html": page.gate(report, () if differences is None else tuple(differences[data.valid_N].tolist())),
        "junit.xml": junit.render(report),
    }
    folder = sides.job.new("gate")
    report = artifact.write(folder, report, {"gate.safetensors": tensors}, texts)
    if isinstance(report.verdict, Green):
        lock = lock_of(report, run.prints, sides.experiment, artifact.identity(folder))
        part = sides.job.folder / f"{LOCK}.part"
        part.write_text(lock.model_dump_json(indent=1) + "\n", encoding="utf-8")
        part.replace(sides.job.folder / LOCK)
    return report, folder.name


def lock_of(
    report: RegressionReport, prints: Mapping[str, Mapping[str, str]], experiment: Experiment, identity: str
) -> Lock:
    """What the green report proved, and where. A side that was not asked proves nothing."""
    ran = {row.name for row in report.axes}
    return Lock(
        contract_version=CONTRACT_VERSION,
        gate=identity,
        axes={row.name: row.outcome.tokens for row in report.axes if row.outcome.status == "exact"},
        not_proved=dict.fromkeys((name for name in get_args(AxisName) if name not in ran), UNASKED)
        | {row.name: row.outcome.reason for row in report.axes if row.outcome.status == "not_run"},
        settings={"rollout": _settings(experiment.rollout, ROLLOUT), "trainer": _settings(experiment.trainer, TRAINER)},
        proved={role: dict(values) for role, values in prints.items() if role in report.sides},
        engine_sets=_engine_sets(report.sides.get("rollout", ()), prints["rollout"]),
        environment=report.environment,
        sides=report.sides,
    )


def _engine_sets(said: tuple[str, ...], started_with: Mapping[str, str]) -> dict[str, str]:
    """Variables among what the running engine said about itself that its process was not started with."""
    pairs = dict(line.split("=", 1) for line in said if "=" in line)
    found = machine.number_variables(pairs)
    return {name: value for name, value in found.items() if started_with.get(name) != value}


def _settings(section: Model, keys: tuple[str, ...]) -> dict[str, str]:
    """What the bits depend on; of variables and of the engine's arguments, nothing private."""
    values = section.model_dump(mode="json")
    if "env" in values:
        values["env"] = {key: value for key, value in values["env"].items() if not machine.silent(key)}
    for name in ("engine", "options"):
        if name in values:
            values[name] = {key: value for key, value in values[name].items() if not engine_args.private(key, value)}
    return {key: str(values[key]) for key in keys}
