"""What a divergence keeps of one operator, so that it can be cut out later: inputs, outputs, scalars, arithmetics.

In the Divergence artifact, for operator K of the work list: `operator-K.json` (Evidence) and `operator-K.safetensors`
(`in.ROLE` for each input of tools/diff/causes/observation.py, `rollout`, `trainer`, and `position` where known).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from samebits.tools.diff.bits import ordered
from samebits.tools.diff.causes.name import KINDS
from samebits.tools.diff.causes.observation import Named, Observation
from samebits.tools.schema.artifacts.evidence import Evidence
from samebits.tools.schema.errors import UserError
from samebits.tools.store.artifact import load_tensors

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 1 << 28
"""Bytes of one operator's evidence above which token rows are dropped, those without a difference first."""
FEWEST = 32


def names(number: int) -> tuple[str, str]:
    """File names for operator K."""
    return f"operator-{number}.json", f"operator-{number}.safetensors"


def pack(seen: Observation, named: Named) -> tuple[str, dict[str, torch.Tensor]]:
    """Text and tensors of the two files, for `store.artifact.write`."""
    kept = trim(seen)
    tensors = {f"in.{role}": tensor for role, tensor in kept.inputs.items()}
    tensors |= {"rollout": kept.rollout, "trainer": kept.trainer}
    if kept.position is not None:
        tensors["position"] = kept.position
    evidence = Evidence(
        kind=kept.kind,
        scalars=dict(kept.scalars),
        device="cuda" if kept.rollout.is_cuda else "cpu",
        rows=kept.rollout.shape[0],
        rows_seen=seen.rollout.shape[0],
        rollout=dict(named.rollout) if named.rollout is not None else None,
        trainer=dict(named.trainer) if named.trainer is not None else None,
    )
    return evidence.model_dump_json(indent=1), {name: tensor.cpu().clone() for name, tensor in tensors.items()}


def trim(seen: Observation) -> Observation:
    """Fewer token rows when all of it is too large."""
    roles = KINDS[seen.kind].row_roles if seen.kind in KINDS else ()
    rows = seen.rollout.shape[0]
    whole = [seen.rollout, seen.trainer, *seen.inputs.values()]
    if sum(tensor.numel() * tensor.element_size() for tensor in whole) <= LIMIT or not roles or rows <= FEWEST:
        return seen
    differs = (ordered(seen.rollout) != ordered(seen.trainer)).reshape(rows, -1).sum(-1)
    index = differs.argsort(descending=True, stable=True)[:FEWEST].sort().values
    position = seen.position[index] if seen.position is not None else None
    return replace(seen.rows(index, roles), position=position)


def kept(folder: Path, number: int) -> bool:
    """Whether a divergence holds the evidence of operator K."""
    return (folder / names(number)[0]).is_file()


def unpack(folder: Path, number: int) -> tuple[Observation, Evidence]:
    """Read the evidence of operator K of a Divergence artifact.

    Raises:
        UserError: there is none, with the reason, or its device is not here.
    """
    text, data = names(number)
    if not kept(folder, number):
        others_kept = sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("operator-*.json"))
        reason = "its inputs were not kept (its cause in the work list says why, or it repeats an operator that was)"
        others = (
            f"--operator {' or '.join(map(str, others_kept))}"
            if others_kept
            else "capture more: no operator's inputs were kept"
        )
        raise UserError(f"operator {number} of {folder}", reason, others)
    evidence = Evidence.model_validate_json((folder / text).read_text(encoding="utf-8"))
    tensors = load_tensors(folder, data)
    if evidence.device == "cuda" and not torch.cuda.is_available():
        reason = "it was captured on CUDA, whose kernels have other bits than the CPU's, and no CUDA device is here"
        raise UserError(f"operator {number} of {folder}", reason, "run this on a machine with a GPU")
    tensors = {name: tensor.to(evidence.device) for name, tensor in tensors.items()}
    inputs = {name.removeprefix("in."): tensor for name, tensor in tensors.items() if name.startswith("in.")}
    position = tensors.get("position")
    seen = Observation(evidence.kind, inputs, tensors["rollout"], tensors["trainer"], evidence.scalars, position)
    return seen, evidence
