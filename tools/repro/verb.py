"""`samebits minimize`: cuts one operator of a divergence out into a folder that runs by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.diff.causes.fingerprint import fingerprint
from samebits.tools.repro import evidence, folder, sides
from samebits.tools.repro.shrink import shrink
from samebits.tools.schema import asked
from samebits.tools.schema.artifacts.divergence import DivergenceManifest
from samebits.tools.schema.artifacts.repro import ReproManifest
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.results import Result
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from samebits.tools.diff.causes.observation import Observation
    from samebits.tools.job.job import Job
    from samebits.tools.repro.shrink import Shrunk
    from samebits.tools.repro.sides import Side, Tried
    from samebits.tools.schema.artifacts.divergence import WorkItem
    from samebits.tools.schema.requests import MinimizeRequest
    from samebits.tools.schema.results import Cell

LIMIT_S = 300


def run_minimize(request: MinimizeRequest, job: Job) -> Result:
    """Find each side's code, shrink, write the folder, run it.

    Raises:
        UserError: no such divergence or operator, or an operator that cannot be run alone.
    """
    source = Path(request.divergence)
    manifest = artifact.read(source, DivergenceManifest)
    asked.check_index(manifest, request.divergence, request.operator)
    number, seen, ours, theirs = _codes(job, source, manifest, request.operator)
    item = manifest.work[number]
    job.emit("shrink", "making it smaller while the sides differ")
    by_batch = item.cause.name == "order_batch"
    small = shrink(seen, lambda cut: sides.both(cut, ours, theirs), by_batch=by_batch)
    job.emit("write", small.line())
    title = f"{item.kind} {item.between}: rollout and trainer differ"
    made = write(job, source, number, item, title, small, ours, theirs)
    code, output = run_it(made)
    if code != 1:
        raise UserError(
            str(made / "repro.py"), f"exit code {code} where 1 was due: {output[-300:]}", "report this with the folder"
        )
    start = "" if request.operator is not None else f"Operator {number}, the first that can be cut out: "
    return result(made, item, start, small, ours, theirs, output)


def _codes(
    job: Job, source: Path, manifest: DivergenceManifest, asked_for: int | None
) -> tuple[int, Observation, Side, Side]:
    """The operator that was asked for, or the first with kept inputs and code for both sides; each side's code.

    Raises:
        UserError: there is none, with every reason.
    """
    job.emit("operators", "looking for the code that gives each side's bits")
    reasons = []
    for number in range(len(manifest.work)) if asked_for is None else [asked_for]:
        try:
            seen, kept = evidence.unpack(source, number)
            ours, theirs = (chosen(role, *sides.find(seen, kept, role)) for role in ("rollout", "trainer"))
            return number, seen, ours, theirs
        except UserError as error:
            if asked_for is not None:
                raise
            item = manifest.work[number]
            reason = f"{error.thing}: {error.reason}" if evidence.kept(source, number) else item.cause.why
            if item.same_as is None:  # a repetition is for the same reason
                reasons.append(f"operator {number}: {reason}")
    raise UserError(
        str(source),
        f"no operator of its work list can be cut out. {'; '.join(reasons)}",
        "capture more, or run this where the capture was made",
    )


def chosen(role: str, side: Side | None, tried: list[Tried]) -> Side:
    """The side's code, or why there is none."""
    if side is None:
        words = "; ".join(f"{one.name}: {one.outcome}" for one in tried) or "no operator of this kind is known"
        raise UserError(
            f"the {role}'s operator",
            f"no code here gives its captured bits when run alone ({words})",
            "run this where the capture was made, or choose another operator",
        )
    return side


def write(
    job: Job, source: Path, number: int, item: WorkItem, title: str, small: Shrunk, ours: Side, theirs: Side
) -> Path:
    """The Repro artifact."""
    made = job.new("repro")
    line, seen = small.line(), small.seen
    tensors = folder.tensors(seen)
    size = sum(tensor.numel() * tensor.element_size() for name, tensor in tensors.items() if name.startswith("in."))
    cause = f"{item.cause.name}: {item.cause.why}"
    texts = {
        "repro.py": folder.script(title, seen, ours, theirs, line, seen.rollout.device.type),
        "README.md": folder.readme(title, cause, fingerprint(seen), ours, theirs, line, size),
    }
    manifest = ReproManifest(
        made_from={"divergence": artifact.identity(source)}, operator=number, operator_kind=item.kind,
        rollout=ours.name, trainer=theirs.name, needs_vllm=ours.vllm or theirs.vllm,
        shrunk=line, before=small.before, after=small.after,
        runs=small.runs, fingerprint=fingerprint(seen),
    )  # fmt: skip
    artifact.write(made, manifest, {"inputs.safetensors": tensors}, texts)
    return made


def run_it(made: Path) -> tuple[int, str]:
    """Run repro.py in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "repro.py"], cwd=made, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


def result(made: Path, item: WorkItem, start: str, small: Shrunk, ours: Side, theirs: Side, output: str) -> Result:
    """What a person reads first; `start` says which operator it is."""
    lines = [line for line in output.splitlines() if line.strip()]
    summary = (
        f"{start}{item.kind} {item.between}, cut out: {small.line()} ({small.runs} runs). "
        f"rollout: {ours.name}. trainer: {theirs.name}. "
        f"repro.py was run in a fresh interpreter: {lines[-1] if lines else 'no output'}."
    )
    rows: tuple[dict[str, Cell], ...] = tuple(
        {"axis": axis, "before": small.before[axis], "after": small.after[axis]} for axis in small.before
    )
    return Result(
        verdict="differs",
        summary=summary,
        ids={"repro": made.name},
        rows=rows,
        total=len(rows),
        next=f"python {made / 'repro.py'}",
    )
