"""Gives each suspect its cause: builds what went in and came out from the captures, and asks tools/diff/causes.

Legend: T token rows, H hidden, K inputs and N outputs of a linear, D head dimension, S keys, V vocabulary.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.align.pairs import sliced
from samebits.tools.align.taps import common_rows, producer
from samebits.tools.diff.causes.name import name_cause
from samebits.tools.diff.causes.observation import Observation
from samebits.tools.repro import evidence
from samebits.tools.schema.artifacts.divergence import Cause

if TYPE_CHECKING:
    from samebits.tools.align.taps import Taps
    from samebits.tools.diff.find import Found, Suspect
    from samebits.tools.sides.protocol import RolloutData

ROWS = 4096
"""Token rows a cause is tried on; more prove no more and take longer."""


@dataclass(slots=True, frozen=True)
class Missing(Exception):
    """Something a kind needs was not captured."""

    what: str


class Model:
    """What the model folder says: its configuration and, by checkpoint name, its weights."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json; empty when the trainer is not a model folder."""
        path = self.folder / "config.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if self.folder.name and path.is_file() else {}

    @cached_property
    def files(self) -> dict[str, Path]:
        """Checkpoint name -> safetensors file."""
        from safetensors import safe_open

        found: dict[str, Path] = {}
        for path in sorted(self.folder.glob("*.safetensors")) if self.config else []:
            with safe_open(path, "pt") as file:
                found |= dict.fromkeys(file.keys(), path)
        return found

    def weight(self, module: str, name: str = "weight") -> torch.Tensor:
        """A weight as stored; the embedding stands in for a tied head."""
        from safetensors import safe_open

        full = f"{module}.{name}"
        if full not in self.files and module == "lm_head":
            full = next((key for key in self.files if key.endswith("embed_tokens.weight")), full)
        if full not in self.files:
            raise Missing(f"no weight {full} in {self.folder}")
        with safe_open(self.files[full], "pt") as file:
            value: torch.Tensor = file.get_tensor(full)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number of the configuration."""
        value = self.config.get(name, default)
        if value is None:
            raise Missing(f"config.json has no {name}")
        return float(value)

    @property
    def head_dim(self) -> int:
        """Elements of one attention head."""
        own = self.config.get("head_dim")
        return int(own) if own else int(self.number("hidden_size") // self.number("num_attention_heads"))

    @property
    def inv_freq(self) -> torch.Tensor:
        """float32 [D/2], the plain rotary frequencies."""
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default":
            raise Missing(f"rotary type {rope['rope_type']}")
        base = float(rope.get("rope_theta", self.config.get("rope_theta", 10000.0)))
        return 1.0 / (base ** (torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim))


@dataclass(slots=True)
class Bench:
    """Where the observations are built from."""

    rollout: Taps
    model: Model
    data: RolloutData

    def values(self, site: str, keys: torch.Tensor) -> torch.Tensor:
        """The rollout's stored rows of a site for these row keys."""
        if site not in self.rollout.numbers or not self.rollout.tap(site).stored:
            raise Missing(f"{site} was not captured")
        index, _ = common_rows(self.rollout.keys(site), keys)
        if len(index) != len(keys):
            raise Missing(f"{site} has not all rows")
        return self.rollout.value(site)[index]


@dataclass(slots=True, frozen=True)
class Explained:
    """A cause, and what the Divergence artifact keeps so that the operator can be cut out later."""

    cause: Cause
    evidence: tuple[str, dict[str, torch.Tensor]] | None = None
    """Text and tensors of tools/repro/evidence.py; None: the inputs could not be put together."""


def causes(found: Found, rollout: Taps, model_folder: str, data: RolloutData) -> list[Explained]:
    """One cause per suspect."""
    bench = Bench(rollout, Model(model_folder), data)
    return [cause_of(suspect, found, bench) for suspect in found.suspects]


def cause_of(suspect: Suspect, found: Found, bench: Bench) -> Explained:
    """Named, or unknown with the reason."""
    trainer = (
        found.operators if found.operators and str(suspect.pair.trainer) in found.operators.numbers else found.forced
    )
    both = sliced(suspect.pair, bench.rollout, trainer)
    if both is None:
        return Explained(Cause(name="unknown", why="the outputs were not stored"))
    keys, ours, theirs = both.keys_R[:ROWS], both.rollout_RC[:ROWS], both.trainer_RC[:ROWS]
    try:
        seen = _build(suspect, bench, keys, ours, theirs)
        named = name_cause(seen)
        return Explained(named.cause, evidence.pack(seen, named))
    except Missing as missing:
        seen = Observation("unknown", {}, ours, theirs, position=(keys & 0xFFFFFFFF).to(torch.int32))
        cause = name_cause(seen).cause
        return Explained(
            cause.model_copy(update={"why": f"not tried: {missing.what}"}) if cause.name == "unknown" else cause
        )


def _build(suspect: Suspect, bench: Bench, keys: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> Observation:
    position_T = (keys & 0xFFFFFFFF).to(torch.int32)
    module = producer(bench.rollout, suspect.pair.rollout).module
    builders = {
        "norm": _norm,
        "linear": _linear,
        "rotary": _rotary,
        "attention": _attention,
        "logprob": _logprob,
        "activation": _activation,
    }
    if suspect.kind not in builders:
        raise Missing(f"no inputs are put together for kind {suspect.kind}")
    return builders[suspect.kind](suspect, bench, module, keys, position_T, ours, theirs)


def _norm(
    suspect: Suspect,
    bench: Bench,
    module: str,
    keys: torch.Tensor,
    position_T: torch.Tensor,
    ours: torch.Tensor,
    theirs: torch.Tensor,
) -> Observation:
    weight_H = bench.model.weight(suspect.pair.trainer.module)
    width = len(weight_H)
    inputs = {"x": bench.values(f"{module}:in0", keys).reshape(-1, width), "weight": weight_H}
    if f"{module}:in1" in bench.rollout.numbers:
        inputs["residual"] = bench.values(f"{module}:in1", keys).reshape(-1, width)
    scalars = {"eps": bench.model.number("rms_norm_eps", 1e-6)}
    heads = ours.shape[1] // width
    return Observation(
        "norm", inputs, ours.reshape(-1, width), theirs.reshape(-1, width), scalars, position_T.repeat_interleave(heads)
    )


def _linear(
    suspect: Suspect,
    bench: Bench,
    module: str,
    keys: torch.Tensor,
    position_T: torch.Tensor,
    ours: torch.Tensor,
    theirs: torch.Tensor,
) -> Observation:
    del module
    name = suspect.pair.trainer.module if suspect.pair.trainer.module != "logprob" else "lm_head"
    source = next((pair for pair in suspect.inputs if pair.trainer.module == name and pair.trainer.port == "in0"), None)
    if source is None:
        raise Missing(f"the input of {name} is not paired")
    inputs = {"x": bench.values(str(source.rollout), keys), "weight": bench.model.weight(name), "sequence": keys >> 32}
    return Observation("linear", inputs, ours, theirs, position=position_T)


def _rotary(
    suspect: Suspect,
    bench: Bench,
    module: str,
    keys: torch.Tensor,
    position_T: torch.Tensor,
    ours: torch.Tensor,
    theirs: torch.Tensor,
) -> Observation:
    size = bench.model.head_dim
    place = producer(bench.rollout, suspect.pair.rollout)
    # A rotary module takes (positions, q, k) and returns (q, k): output n belongs to the n-th input of its own width.
    call = f"@{place.call}" if place.call else ""
    tensors = [
        tap for tap in bench.rollout.rowed if str(tap.site).startswith(f"{module}{call}:in") and tap.columns >= size
    ]
    number = int(place.port.removeprefix("out") or 0)
    if number >= len(tensors) or tensors[number].columns != ours.shape[1]:
        raise Missing(f"the input of {place} was not told")
    shape = (len(keys), -1, size)
    inputs = {
        "x": bench.values(str(tensors[number].site), keys).reshape(shape),
        "positions": position_T,
        "inv_freq": bench.model.inv_freq,
    }
    return Observation("rotary", inputs, ours.reshape(shape), theirs.reshape(shape), position=position_T)


def _attention(
    suspect: Suspect,
    bench: Bench,
    module: str,
    keys: torch.Tensor,
    position_T: torch.Tensor,
    ours: torch.Tensor,
    theirs: torch.Tensor,
) -> Observation:
    """The longest sequence: all its keys are rows of the same capture."""
    del suspect, position_T
    sequence = keys >> 32
    longest = int(torch.bincount(sequence).argmax())
    mine = sequence == longest
    position_T = (keys[mine] & 0xFFFFFFFF).to(torch.int32)
    if not torch.equal(position_T, torch.arange(len(position_T), dtype=torch.int32)):
        raise Missing("a sequence with every position from 0 on")
    size = bench.model.head_dim
    q, k, v = (
        bench.values(f"{module}:in{number}", keys[mine]).reshape(len(position_T), -1, size) for number in range(3)
    )
    inputs = {"q": q, "k": k, "v": v, "position": position_T}
    scalars = {
        "scale": size**-0.5,
        "window": bench.model.number("sliding_window", 0) if bench.model.config.get("use_sliding_window") else 0,
    }
    shape = q.shape
    return Observation("attention", inputs, ours[mine].reshape(shape), theirs[mine].reshape(shape), scalars, position_T)


def _logprob(
    suspect: Suspect,
    bench: Bench,
    module: str,
    keys: torch.Tensor,
    position_T: torch.Tensor,
    ours: torch.Tensor,
    theirs: torch.Tensor,
) -> Observation:
    del suspect, module
    logits_TV = bench.values("logprob:in0", keys)
    tokens = [
        bench.data.sequences[key >> 32].sampled[(key & 0xFFFFFFFF) - len(bench.data.sequences[key >> 32].prompt) + 1]
        for key in keys.tolist()
    ]
    scalars = {
        "temperature": bench.data.temperature or 1.0,
        "vocabulary": int(bench.model.number("vocab_size", logits_TV.shape[1])),
    }
    inputs = {"logits": logits_TV, "token": torch.tensor(tokens)}
    return Observation("logprob", inputs, ours.reshape(-1), theirs.reshape(-1), scalars, position_T)


def _activation(
    suspect: Suspect,
    bench: Bench,
    module: str,
    keys: torch.Tensor,
    position_T: torch.Tensor,
    ours: torch.Tensor,
    theirs: torch.Tensor,
) -> Observation:
    del suspect
    both_T2F = bench.values(f"{module}:in0", keys)
    if both_T2F.shape[1] != 2 * ours.shape[1]:
        raise Missing("gate and up in one input")
    gate_TF, up_TF = both_T2F.chunk(2, dim=1)
    return Observation("activation", {"gate": gate_TF, "up": up_TF}, ours, theirs, {"name": "silu"}, position_T)
