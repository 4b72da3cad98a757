"""`samebits gate`: the regression gate, for a terminal and for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.server.cli import gate_compare, gate_lock, show, whole
from samebits.server.cli.common import HERE, Config, Json, RolloutFile, Sets, absolute, job_folder
from samebits.server.jobs.start import start
from samebits.tools.report import junit
from samebits.tools.schema import reader
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment
from samebits.tools.schema.requests import GateRequest
from samebits.tools.schema.results import Outcome, Succeeded, TimedOut

LOCK = "samebits.lock"


def gate(
    config: Config = HERE,
    sets: Sets = None,
    rollout: RolloutFile = None,
    axes: Annotated[
        str | None, typer.Option(help="Comma-separated axes to run (default: [gate] axes, else all).")
    ] = None,
    require: Annotated[str, typer.Option(help="Comma-separated axes that must have run.")] = "",
    resume: Annotated[
        Path | None, typer.Option(help="An earlier piece of this gate: what it has a verdict on is taken over.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="OLD NEW", help="Run nothing: two reports side by side, as a page (--out FILE)."),
    ] = None,
    tiny: Annotated[str, typer.Option(help="A tiny random model on CPU: qwen3, qwen3_tied, llama, qwen3_moe.")] = "",
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML here.")] = None,
    lock: Annotated[
        Path | None, typer.Option(help="Write samebits.lock here when green (default: beside samebits.toml).")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Job folder, or the page of --compare.")] = None,
    as_json: Json = False,
) -> None:
    """Every axis exact, each with a negative control that must fail; exits 0 only then. Writes samebits.lock."""
    if compare is not None:
        given = {"--axes": axes, "--require": require, "--resume": resume, "--tiny": tiny, "--lock": lock}
        if extra := [name for name, value in given.items() if value]:
            raise UserError(" ".join(extra), "--compare runs nothing", "leave it out")
        raise typer.Exit(gate_compare.show_both(*compare, out or Path("compare.html"), as_json=as_json))
    experiment = Experiment() if tiny else reader.read(config, tuple(sets or ()))
    if tiny and (sets or rollout or config != HERE):
        raise UserError("--tiny", "brings its own experiment", "leave --config, --set and --rollout out, or --tiny")
    if axes is not None and not _names(axes):
        raise UserError('--axes ""', "names no axis", "name axes, or leave --axes out for all")
    for path in (junit_file, lock):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise UserError(str(path), "no file can be written there", "name a file in a folder that exists")
    request = GateRequest.model_validate(
        {
            "experiment": experiment,
            "rollout": absolute(rollout),
            "axes": _names(axes or ""),
            "require": _names(require),
            "resume": "" if resume is None else str(resume.resolve()),
            "tiny": tiny,
        }
    )
    folder = job_folder(request, out)
    running = start(request, folder)
    outcome = show.follow(running, quiet=as_json)
    if junit_file is not None:
        _write_junit(junit_file, outcome, folder)
    target = lock or (None if tiny else _beside(config))
    if target is not None and isinstance(outcome, Succeeded) and outcome.result.verdict == "equal":
        said = gate_lock.put(folder / outcome.result.ids["lock"], target)
        summary = "\n".join(filter(None, (outcome.result.summary, said)))
        outcome = outcome.model_copy(update={"result": outcome.result.model_copy(update={"summary": summary})})
    raise typer.Exit(show.finish(outcome, running, as_json=as_json))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _beside(config: Path) -> Path:
    return (config if config.is_dir() else config.parent) / LOCK


def _write_junit(path: Path, outcome: Outcome, folder: Path) -> None:
    """The report's own, or one error where there is no report: CI must never see an empty file as green."""
    if isinstance(outcome, Succeeded):
        report = folder / outcome.result.ids["regression"] / "junit.xml"
        _put(path, report.read_text(encoding="utf-8"))
        return
    reason = getattr(outcome, "message", "") or f"the gate {outcome.state.replace('_', ' ')}"
    if isinstance(outcome, TimedOut):
        reason = f"the gate was ended after its time limit of {outcome.limit_s:.0f} s"
    _put(path, junit.render_error(reason))


def _put(path: Path, text: str) -> None:
    try:
        whole.write(path, text)
    except OSError as error:
        raise UserError(str(path), f"cannot be written ({error.strerror})", "name another file with --junit") from error
