"""`samebits capture`: record taps of one side over a rollout, and prove that recording moved no bit."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from samebits.tools.job.job import runs_compiled
from samebits.tools.job.rollouts import obtain
from samebits.tools.job.sides import Sides
from samebits.tools.schema.artifacts.capture import CaptureManifest
from samebits.tools.schema.artifacts.weights import SideModules
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import Modules
from samebits.tools.schema.results import Cell, Result
from samebits.tools.schema.sites import CapturePlan
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.job.job import Job
    from samebits.tools.job.rollouts import Source
    from samebits.tools.schema.experiment import Capture
    from samebits.tools.schema.requests import CaptureRequest
    from samebits.tools.sides.protocol import Scores

SHOWN = 40
"""Taps in the answer; all are in the artifact."""
_LAYER = re.compile(r"^(?:[^.]*[^.\d][^.]*\.)+(?P<index>\d+)(?:\.|$)")
"""The outermost numbered module: `model.layers.3.mlp` is in layer 3."""


def run_capture(request: CaptureRequest, job: Job) -> Result:
    """Carry out a capture request; writes a Capture artifact.

    Raises:
        UserError: bad input of any kind, a capture over its budget, of a compiled engine what its graph cannot give;
            SideDied: a side ended.
    """
    compiled = request.side == "rollout" and runs_compiled(request.experiment)
    if compiled:
        _check_compiled(request.experiment.capture)
    with Sides(job, request.experiment) as sides:
        source = obtain(request.rollout, sides.experiment, lambda: sides.session("rollout"), job)
        config = request.experiment.capture
        modules = None if config.layers == "all" else chosen_modules(_modules(sides, request, job), config)
        plan = plan_of(config, modules, len(source.data.sequences))
        job.emit("score", "the logprobs without capture")
        plain, _ = sides.score(request.side, source.folder)
        if compiled:
            # Another graph: that the taps in it move no bit is seen against the one without.
            sides.close()
            sides.taps = True
            job.emit("open", "the engine again, with opaque taps in its graph")
        job.emit("capture", f"recording at {plan.level} level, {plan.store} mode")
        captured, folder = sides.score(request.side, source.folder, capture=plan)
        same = _same(plain, captured)
        steady = same or _same(plain, sides.score(request.side, source.folder)[0])
    target = job.new("capture")
    os.replace(folder / "capture", target)
    manifest = _complete(target, same, source)
    return _answer(manifest, target, same, steady, request.side)


def _check_compiled(config: Capture) -> None:
    """Inside a compiled graph only digests of modules can be taken.

    Raises:
        UserError: something else is asked for.
    """
    for name, value, possible in (("level", config.level, "module"), ("store", config.store, "digest")):
        if value != possible:
            raise UserError(
                f'capture.{name} = "{value}" of a compiled engine',
                "no hook runs inside a compiled graph; the taps that stay in it give digests of modules",
                f'--set rollout.eager=true (its bits are other ones), or --set capture.{name}="{possible}"',
            )


def plan_of(config: Capture, modules: tuple[str, ...] | None, sequences: int) -> CapturePlan:
    """The plan of an experiment's [capture] section."""
    kept = None if config.sequences == "all" else tuple(range(min(config.sequences, sequences)))
    return CapturePlan(
        level=config.level,
        modules=modules,
        store=config.store,
        sequences=kept,
        replay=config.level == "operator",
        budget_bytes=config.budget_mib << 20,
    )


def chosen_modules(tree: SideModules, config: Capture) -> tuple[str, ...]:
    """Paths in the chosen layers: every module in them, or at operator level the layers themselves.

    Raises:
        UserError: a layer the model does not have.
    """
    inside: dict[int, list[str]] = {}
    for view in tree.modules:
        found = _LAYER.match(view.path)
        if found is not None:
            inside.setdefault(int(found["index"]), []).append(view.path)
    assert config.layers != "all"
    absent = sorted(set(config.layers) - set(inside))
    if absent:
        there = f"layers 0 to {max(inside)}" if inside else "no numbered layers"
        raise UserError(
            "capture.layers", f"layer {absent[0]} is not in this model, which has {there}", "name existing layers"
        )
    paths = [path for layer in config.layers for path in inside[layer]]
    if config.level == "operator":
        shortest = min(path.count(".") for path in paths)
        return tuple(path for path in paths if path.count(".") == shortest)
    called = {view.path for view in tree.modules if view.calls or view.order >= 0}
    return tuple(path for path in paths if path in called)


def _modules(sides: Sides, request: CaptureRequest, job: Job) -> SideModules:
    folder = job.new("modules")
    sides.session(request.side).ask(Modules(folder=str(folder)))
    return SideModules.model_validate_json((folder / "modules.json").read_text(encoding="utf-8"))


def _same(a: Scores, b: Scores) -> bool:
    """Equal bits of every scored logprob, and at least one."""
    import torch

    left, right = a.logprob_N[a.scored_N].view(torch.int32), b.logprob_N[b.scored_N].view(torch.int32)
    return bool(a.scored_N.any()) and torch.equal(a.scored_N, b.scored_N) and torch.equal(left, right)


def _complete(folder: Path, same: bool, source: Source) -> CaptureManifest:
    """Add to the manifest what only this process knows."""
    manifest = artifact.read(folder, CaptureManifest)
    whole = manifest.model_copy(
        update={"same_logprobs": same, "made_from": manifest.made_from | {"rollout": artifact.identity(source.folder)}}
    )
    part = folder / (artifact.MANIFEST + ".part")
    part.write_text(whole.model_dump_json(indent=1), encoding="utf-8")
    os.replace(part, folder / artifact.MANIFEST)
    return whole


def _answer(manifest: CaptureManifest, folder: Path, same: bool, steady: bool, side: str) -> Result:
    size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
    rows: tuple[dict[str, Cell], ...] = tuple(
        {
            "site": str(tap.site),
            "producer": tap.producer,
            "dtype": tap.dtype,
            "rows": tap.rows,
            "columns": tap.columns,
            "stored": tap.stored,
            "digest": tap.digest,
        }
        for tap in manifest.taps
    )
    head = f"{len(manifest.taps)} taps of {manifest.tokens} tokens in {manifest.passes} passes, {size:.1f} MiB."
    if same:
        first = "The captured run gave the same logprob bits as the run without capture."
    elif steady:
        first = (
            "CAPTURE DISTURBS THE RUN: its logprobs differ from those of the run without capture. Trust no tap of it."
        )
    else:
        first = "THE SIDE IS NOT EQUAL TO ITSELF: the same call twice gives other logprobs, with or without capture."
    return Result(
        verdict="done" if same and manifest.taps else "differs" if manifest.taps else "unjudged",
        summary=" ".join([first, head, *_notes(manifest)]),
        ids={"capture": folder.name},
        rows=rows[:SHOWN],
        truncated=len(rows) > SHOWN,
        total=len(rows),
        next="samebits diff" if same else "samebits measure --axes repeat" if not steady else f"read {side}.log",
    )


def _notes(manifest: CaptureManifest) -> list[str]:
    notes = []
    if manifest.missing:
        notes.append(f"{manifest.missing} token rows were never computed (prefix cache).")
    if manifest.recomputed_differing:
        differing = manifest.recomputed_differing
        notes.append(f"Rows computed again differ at {len(differing)} sites, first {differing[0]}.")
    failed = [replay for replay in manifest.replays if replay.calls and not replay.equal]
    if manifest.replays:
        done = sum(1 for replay in manifest.replays if replay.calls)
        notes.append(f"{done - len(failed)} of {done} operators gave their bits again when run alone.")
    if failed:
        notes.append(f"First that did not: {failed[0].site}.")
    if manifest.untapped:
        never = sum("never called as a module" in line for line in manifest.untapped)
        inside = f" ({never} of them modules never called: inlined, or inside a compiled graph)" if never else ""
        notes.append(f"Not tapped: {len(manifest.untapped)} entries{inside}, listed in the artifact.")
    return notes
