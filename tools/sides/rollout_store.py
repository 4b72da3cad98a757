"""Rollouts and scores between memory and artifact folders.

Legend: S sequences, P prompt tokens in all, N sampled tokens in all.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Literal, cast

import torch

from samebits.tools.schema.artifacts.rollout import RolloutManifest
from samebits.tools.sides.protocol import RolloutData, Scores, Sequence
from samebits.tools.store import artifact
from samebits.tools.store.fingerprint import environment

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.schema.artifacts.rollout import Origin

TENSORS = "rollout.safetensors"


def _flat(lists: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    offsets_S1 = torch.zeros(len(lists) + 1, dtype=torch.int64)
    offsets_S1[1:] = torch.tensor([len(part) for part in lists], dtype=torch.int64).cumsum(0)
    return torch.tensor([token for part in lists for token in part], dtype=torch.int32), offsets_S1


def write(
    folder: Path, data: RolloutData, *, side: str, notes: tuple[str, ...] = (), origin: Origin | None = None
) -> RolloutManifest:
    """Write a Rollout artifact."""
    prompt_P, prompt_offsets_S1 = _flat([s.prompt for s in data.sequences])
    sampled_N, sampled_offsets_S1 = _flat([s.sampled for s in data.sequences])
    tensors = {
        "prompt_ids": prompt_P,
        "prompt_offsets": prompt_offsets_S1,
        "sampled_ids": sampled_N,
        "sampled_offsets": sampled_offsets_S1,
        "logprob": data.logprob_N,
        "valid": data.valid_N,
    }
    if data.lines:
        tensors["lines"] = torch.tensor(data.lines, dtype=torch.int64)
    manifest = RolloutManifest(
        sequences=len(data.sequences),
        tokens=len(sampled_N),
        temperature=data.temperature,
        top_p=data.top_p,
        top_k=data.top_k,
        logprobs=cast("Literal['raw', 'processed', 'unknown']", data.logprobs),
        weight_version=data.weight_version,
        side=side,
        source=data.source,
        origin=origin,
        notes=notes,
        environment=environment(),
    )
    return artifact.write(folder, manifest, {TENSORS: tensors})


def read(folder: Path) -> RolloutData:
    """Read a Rollout artifact, checking its digests.

    Raises:
        UserError: not a rollout, or damaged.
    """
    manifest = artifact.read(folder, RolloutManifest)
    stored = artifact.load_tensors(folder, TENSORS)

    def parts(name: str) -> list[list[int]]:
        ids, offsets = stored[f"{name}_ids"].tolist(), stored[f"{name}_offsets"].tolist()
        return [ids[a:b] for a, b in itertools.pairwise(offsets)]

    sequences = [Sequence(prompt, sampled) for prompt, sampled in zip(parts("prompt"), parts("sampled"), strict=True)]
    return RolloutData(
        sequences,
        stored["logprob"],
        stored["valid"],
        manifest.temperature,
        manifest.top_p,
        manifest.top_k,
        manifest.logprobs,
        manifest.weight_version,
        manifest.source,
        stored["lines"].tolist() if "lines" in stored else [],
    )


def write_scores(folder: Path, scores: Scores) -> None:
    """Write scores.safetensors into an existing folder."""
    from safetensors.torch import save_file

    save_file(
        {"logprob": scores.logprob_N.contiguous(), "scored": scores.scored_N.contiguous()},
        folder / "scores.safetensors",
    )


def read_scores(folder: Path) -> Scores:
    """Read scores.safetensors."""
    from safetensors.torch import load_file

    stored = load_file(folder / "scores.safetensors")
    return Scores(stored["logprob"], stored["scored"])


def write_columns(folder: Path, columns: dict[str, torch.Tensor]) -> None:
    """Write readings.safetensors; the folder is made if missing."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: column.contiguous() for name, column in columns.items()}, folder / "readings.safetensors")


def read_columns(folder: Path) -> dict[str, torch.Tensor]:
    """Read readings.safetensors."""
    from safetensors.torch import load_file

    return dict(load_file(folder / "readings.safetensors"))
