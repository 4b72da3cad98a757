"""Other weights for the same model, so that a reload has something to load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from samebits.tools.job.job import Job

STEP = 0.05
"""Size of the change of each weight, in standard deviations of its tensor."""


@dataclass(slots=True, frozen=True)
class Changed:
    """Three sets of weights under checkpoint names."""

    original: Path
    """The model folder, or the one file of weights in it."""
    whole: Path
    """Every weight moved."""
    partly: Path
    """The same, but for one tensor that kept its old values."""
    left: str
    """Name of that tensor."""


@dataclass(slots=True, frozen=True)
class Nudged:
    """Weights of which one matrix was moved."""

    original: Path
    file: Path
    words: str


def nudge(model: str, job: Job) -> Nudged:
    """Write weights of which every element of one matrix in the middle is another by one unit in the last place.

    Raises:
        UserError: the model is no folder with safetensors.
    """
    from safetensors.torch import save_file

    state, original = _read(model)
    name = _inner(state)
    folder = job.new("weights")
    folder.mkdir(parents=True)
    save_file(state | {name: _one_ulp(state[name])}, folder / "nudged.safetensors", metadata={"format": "pt"})
    words = f"on weights with every element of {name} moved by one ulp"
    return Nudged(original, folder / "nudged.safetensors", words)


def _one_ulp(tensor: torch.Tensor) -> torch.Tensor:
    integers = tensor.contiguous().view({2: torch.int16, 4: torch.int32, 1: torch.int8}[tensor.element_size()])
    return (integers ^ 1).view(tensor.dtype)


def _read(model: str) -> tuple[dict[str, torch.Tensor], Path]:
    """Weights, and what to push to have them back: one file can be pushed into every kind of side, a folder of several
    only into those that read an index.
    """
    from samebits.tools.sides.vllm.push import read_state

    original = Path(model)
    if not original.is_dir():
        raise UserError(f"model {model!r}", "no folder of weights that could be pushed", "name a model folder")
    files = sorted(original.glob("*.safetensors"))
    return read_state(original), files[0] if len(files) == 1 else original


def change(model: str, job: Job) -> Changed:
    """Write both files below the job's folder.

    Raises:
        UserError: the model is no folder with safetensors.
    """
    from safetensors.torch import save_file

    state, original = _read(model)
    generator = torch.Generator().manual_seed(0)
    moved = {name: _moved(tensor, generator) for name, tensor in state.items()}
    left = _inner(moved)
    folder = job.new("weights")
    folder.mkdir(parents=True)
    save_file(moved, folder / "whole.safetensors", metadata={"format": "pt"})
    save_file(moved | {left: state[left]}, folder / "partly.safetensors", metadata={"format": "pt"})
    return Changed(original, folder / "whole.safetensors", folder / "partly.safetensors", left)


def _moved(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor.clone()
    values = tensor.float()
    size = float(values.std(correction=0)) or float(values.abs().mean()) or 1.0
    return (values + STEP * size * torch.randn(values.shape, generator=generator)).to(tensor.dtype).contiguous()


def _inner(state: dict[str, torch.Tensor]) -> str:
    """A matrix in the middle of the model that every token goes through."""
    names = [name for name, t in state.items() if t.dim() == 2 and "embed" not in name and "expert" not in name]
    layers = sorted(name for name in names if "layers" in name) or sorted(names)
    if not layers:
        raise UserError("the weights", "hold no matrix", "name a folder of a causal LM")
    return layers[len(layers) // 2]
