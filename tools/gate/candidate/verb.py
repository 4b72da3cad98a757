"""`samebits build`: one candidate, or one of the library's own operators, through the gate. Writes a CandidateGate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.gate.candidate.runner import run_gate, target_of
from samebits.tools.schema import gates
from samebits.tools.schema.results import Result
from samebits.tools.store import artifact, fingerprint

if TYPE_CHECKING:
    from samebits.tools.job.job import Job
    from samebits.tools.schema.artifacts.candidate_gate import CandidateGate, Leg
    from samebits.tools.schema.requests import BuildRequest
    from samebits.tools.schema.results import Cell


def run_build(request: BuildRequest, job: Job) -> Result:
    """Carry out a build request.

    Raises:
        UserError: neither a candidate folder nor an operator, a candidate.toml that cannot be used, a device that is
        not here, a sandbox that is required and not here.
    """
    target = target_of(request.candidate, request.device)
    job.emit(
        "open", f"{request.candidate}: operator {target.operator} on {target.device}, dtypes {', '.join(target.dtypes)}"
    )
    report, log = run_gate(
        target,
        job.new("candidate-work"),
        timed=request.timing,
        memory_bytes=request.memory_limit_mib << 20,
        sandbox=request.sandbox,
        emit=lambda leg, text: job.emit(leg, text),
    )
    folder = job.new("candidate-gate")
    artifact.write(folder, report.model_copy(update={"environment": fingerprint.environment()}), texts={"log.txt": log})
    gates.seal(artifact.identity(folder))
    return result_of(report, folder.name)


def result_of(report: CandidateGate, name: str) -> Result:
    """The flat answer; every one says what held the candidate."""
    result = verdict_of(report, name)
    held = "UNSANDBOXED: its process never came up" if report.sandbox is None else report.sandbox.words
    return result.model_copy(update={"summary": f"{result.summary} [{held}]"})


def verdict_of(report: CandidateGate, name: str) -> Result:
    """The answer about the legs."""
    rows = tuple(row_of(leg) for leg in report.legs)
    ids = {"candidate_gate": name}
    verdict = report.verdict
    if verdict.kind == "passed":
        text, following = (
            f"{report.candidate}: every leg it needs is green.",
            "samebits propose with this candidate_gate and the repro it answers; then a person reviews it"
            if report.digest != "library"
            else "nothing to propose: it is the library's own",
        )
        return Result(verdict="done", summary=text, ids=ids, rows=rows, total=len(rows), next=following)
    if verdict.kind == "stopped":
        outcome = next(leg.outcome for leg in report.legs if leg.name == verdict.leg)
        assert outcome.status == "red"
        first = outcome.first
        detail = (
            ""
            if first is None
            else f" First: output {first.output} {list(first.index)}: {first.got}, expected {first.expected}."
        )
        text = f"{report.candidate}: leg '{verdict.leg}' is red: {outcome.what}.{detail}"
        return Result(
            verdict="differs",
            summary=text,
            ids=ids,
            rows=rows,
            total=len(rows),
            next="mend the candidate and build again",
        )
    text = f"{report.candidate}: nothing is red, but not run here: {', '.join(verdict.missing)}. That is not a pass."
    return Result(
        verdict="unjudged",
        summary=text,
        ids=ids,
        rows=rows,
        total=len(rows),
        next="build on a machine with the claimed device",
    )


def row_of(leg: Leg) -> dict[str, Cell]:
    """One leg as a row of the answer."""
    outcome = leg.outcome
    text = (
        outcome.evidence
        if outcome.status == "green"
        else outcome.what
        if outcome.status == "red"
        else f"not run: {outcome.reason}"
    )
    return {
        "leg": leg.name,
        "outcome": outcome.status,
        "mandatory": leg.mandatory,
        "seconds": round(leg.seconds, 2),
        "detail": text,
    }
