"""Puts together what went into an operator and what came out on both sides, from the captures and the model folder.

Legend: T token rows, H hidden, K inputs and N outputs of a linear, F features, D head dimension, S keys, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from samebits.tools.align.taps import common_rows, producer
from samebits.tools.diff.causes.observation import Observation
from samebits.tools.diff.model_folder import Missing, Model
from samebits.tools.diff.observe_experts import observe_experts

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.align.taps import Taps
    from samebits.tools.diff.find import Suspect
    from samebits.tools.schema.artifacts.divergence import Pair
    from samebits.tools.sides.protocol import RolloutData


@dataclass(slots=True, frozen=True)
class Case:
    """One suspect with the rows it is looked at on."""

    suspect: Suspect
    rollout: Taps
    model: Model
    data: RolloutData
    keys: torch.Tensor
    """int64 [T], sequence << 32 | position."""
    ours: torch.Tensor
    """The rollout's output [T, columns]."""
    theirs: torch.Tensor
    pairs: tuple[Pair, ...] = ()
    """All pairs of the two captures."""

    @property
    def module(self) -> str:
        """Path of the rollout's module that makes the output."""
        return producer(self.rollout, self.suspect.pair.rollout).module

    @property
    def position_T(self) -> torch.Tensor:
        """int32, absolute positions."""
        return (self.keys & 0xFFFFFFFF).to(torch.int32)

    def passes(self, site: str) -> dict[str, torch.Tensor]:
        """The input `pass` of the rows: which of them went through the rollout's operator together."""
        pass_R = self.rollout.passes(site)
        index, _ = common_rows(self.rollout.keys(site), self.keys)
        return {} if pass_R is None or len(index) != len(self.keys) else {"pass": pass_R[index].to(torch.int64)}

    def merged(self) -> dict[str, torch.Tensor]:
        """`merged` [M, K] and `columns` [N]: the rollout's weight of which the trainer's is a part; empty: is not."""
        own = self.suspect.pair
        if own.columns is None or own.wider != "rollout":
            return {}
        parts = sorted(
            (pair.columns, pair.trainer.module)
            for pair in self.pairs
            if pair.rollout == own.rollout and pair.wider == "rollout" and pair.columns is not None
        )
        ends = [0, *(columns[1] for columns, _ in parts)]
        if [columns[0] for columns, _ in parts] != ends[:-1]:
            return {}
        return {
            "merged": torch.cat([self.model.weight(module) for _, module in parts]),
            "columns": torch.arange(*own.columns),
        }

    def values(self, site: str, keys: torch.Tensor | None = None) -> torch.Tensor:
        """The rollout's stored rows of a site.

        Raises:
            Missing: not captured, or not for all rows.
        """
        wanted = self.keys if keys is None else keys
        if site not in self.rollout.numbers or not self.rollout.tap(site).stored:
            raise Missing(f"{site} was not captured")
        index, _ = common_rows(self.rollout.keys(site), wanted)
        if len(index) != len(wanted):
            raise Missing(f"{site} has not all rows")
        return self.rollout.value(site)[index]


def observe(case: Case) -> Observation:
    """The observation of a suspect, by its kind.

    Raises:
        Missing: something this kind needs was not captured, or the kind is not put together.
    """
    builder = BUILDERS.get(case.suspect.kind)
    if builder is None:
        raise Missing(f"no inputs are put together for kind {case.suspect.kind}")
    return builder(case)


def _norm(case: Case) -> Observation:
    weight_H = case.model.weight(case.suspect.pair.trainer.module)
    width = len(weight_H)
    inputs = {"x": case.values(f"{case.module}:in0").reshape(-1, width), "weight": weight_H}
    if f"{case.module}:in1" in case.rollout.numbers:
        inputs["residual"] = case.values(f"{case.module}:in1").reshape(-1, width)
    scalars = {"eps": case.model.number("rms_norm_eps", 1e-6)}
    heads = case.ours.shape[1] // width
    return Observation(
        "norm",
        inputs,
        case.ours.reshape(-1, width),
        case.theirs.reshape(-1, width),
        scalars,
        case.position_T.repeat_interleave(heads),
    )


def _linear(case: Case) -> Observation:
    name = case.suspect.pair.trainer.module if case.suspect.pair.trainer.module != "logprob" else "lm_head"
    source = next(
        (pair for pair in case.suspect.inputs if pair.trainer.module == name and pair.trainer.port == "in0"), None
    )
    if source is None:
        raise Missing(f"the input of {name} is not paired")
    inputs = {"x": case.values(str(source.rollout)), "weight": case.model.weight(name), "sequence": case.keys >> 32}
    inputs |= case.passes(str(source.rollout)) | case.merged()
    return Observation("linear", inputs, case.ours, case.theirs, position=case.position_T)


def _rotary(case: Case) -> Observation:
    size = case.model.head_dim
    place = producer(case.rollout, case.suspect.pair.rollout)
    # A rotary module takes (positions, q, k) and returns (q, k): output n belongs to the n-th input of its own width.
    call = f"@{place.call}" if place.call else ""
    tensors = [
        tap for tap in case.rollout.rowed if str(tap.site).startswith(f"{case.module}{call}:in") and tap.columns >= size
    ]
    number = int(place.port.removeprefix("out") or 0)
    if number >= len(tensors) or tensors[number].columns != case.ours.shape[1]:
        raise Missing(f"the input of {place} was not told")
    shape = (len(case.keys), -1, size)
    inputs = {
        "x": case.values(str(tensors[number].site)).reshape(shape),
        "positions": case.position_T,
        "inv_freq": case.model.inv_freq,
    }
    scalars = {"base": case.model.rope_base}
    return Observation(
        "rotary", inputs, case.ours.reshape(shape), case.theirs.reshape(shape), scalars, position=case.position_T
    )


def _attention(case: Case) -> Observation:
    """The longest sequence: all its keys are rows of the same capture."""
    sequence = case.keys >> 32
    longest = int(torch.bincount(sequence).argmax())
    mine = sequence == longest
    position_T = (case.keys[mine] & 0xFFFFFFFF).to(torch.int32)
    if not torch.equal(position_T, torch.arange(len(position_T), dtype=torch.int32)):
        raise Missing("a sequence with every position from 0 on")
    size = case.model.head_dim
    q, k, v = (
        case.values(f"{case.module}:in{number}", case.keys[mine]).reshape(len(position_T), -1, size)
        for number in range(3)
    )
    inputs = {"q": q, "k": k, "v": v, "position": position_T}
    inputs |= {name: pass_T[mine] for name, pass_T in case.passes(f"{case.module}:in0").items()}
    scalars = {
        "scale": size**-0.5,
        "window": case.model.number("sliding_window", 0) if case.model.config.get("use_sliding_window") else 0,
    }
    shape = q.shape
    return Observation(
        "attention", inputs, case.ours[mine].reshape(shape), case.theirs[mine].reshape(shape), scalars, position_T
    )


def _logprob(case: Case) -> Observation:
    logits_TV = case.values("logprob:in0")
    tokens = [
        case.data.sequences[key >> 32].sampled[(key & 0xFFFFFFFF) - len(case.data.sequences[key >> 32].prompt) + 1]
        for key in case.keys.tolist()
    ]
    scalars = {
        "temperature": case.data.temperature or 1.0,
        "vocabulary": int(case.model.number("vocab_size", logits_TV.shape[1])),
    }
    inputs = {"logits": logits_TV, "token": torch.tensor(tokens), "sequence": case.keys >> 32}
    inputs |= case.passes("logprob:in0")
    return Observation("logprob", inputs, case.ours.reshape(-1), case.theirs.reshape(-1), scalars, case.position_T)


def _activation(case: Case) -> Observation:
    both_T2F = case.values(f"{case.module}:in0")
    if both_T2F.shape[1] != 2 * case.ours.shape[1]:
        raise Missing("gate and up in one input")
    gate_TF, up_TF = both_T2F.chunk(2, dim=1)
    return Observation(
        "activation", {"gate": gate_TF, "up": up_TF}, case.ours, case.theirs, {"name": "silu"}, case.position_T
    )


def _residual(case: Case) -> Observation:
    """A norm with a residual hands out the sum of its two inputs."""
    x, residual = (case.values(f"{case.module}:in{number}") for number in range(2))
    if case.ours.shape != x.shape or x.shape != residual.shape:
        raise Missing(f"two inputs of {case.module} as wide as its sum")
    return Observation("residual", {"x": x, "residual": residual}, case.ours, case.theirs, position=case.position_T)


BUILDERS: dict[str, Callable[[Case], Observation]] = {
    "norm": _norm,
    "linear": _linear,
    "rotary": _rotary,
    "attention": _attention,
    "logprob": _logprob,
    "activation": _activation,
    "residual": _residual,
    "experts": observe_experts,
}
