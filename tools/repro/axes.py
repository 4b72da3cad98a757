"""Along what an operator can be made smaller: one letter per axis of each input.

Letters: T token rows, H hidden, K inputs of a linear, N its outputs, M those of a merged weight, Q query heads, G key
heads, S keys, D head dim, E its half, F features, V vocabulary, P parts, U updates. An axis that is not listed for
shrinking is kept whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from samebits.tools.diff.causes.observation import Observation

if TYPE_CHECKING:
    from collections.abc import Mapping

SHAPES: Mapping[str, Mapping[str, str]] = {
    "norm": {"x": "TH", "residual": "TH", "weight": "H", "out": "TH"},
    "rotary": {"x": "TQD", "positions": "T", "cos": "TE", "sin": "TE", "inv_freq": "E", "out": "TQD"},
    "linear": {
        "x": "TK", "weight": "NK", "bias": "N", "sequence": "T", "pass": "T", "merged": "MK", "columns": "N",
        "out": "TN",
    },
    "attention": {"q": "TQD", "k": "SGD", "v": "SGD", "position": "T", "pass": "T", "sink": "Q", "out": "TQD"},
    "activation": {"gate": "TF", "up": "TF", "out": "TF"},
    "router": {"logits": "TE", "out": "TE"},
    "experts": {"x": "TH", "weights": "TX", "ids": "TX", "logits": "TE", "out": "TH"},
    "embedding": {"ids": "T", "weight": "VH", "out": "TH"},
    "logprob": {"logits": "TV", "token": "T", "sequence": "T", "pass": "T", "out": "T"},
    "residual": {"x": "TH", "residual": "TH", "updates": "TUH", "out": "TH"},
    "reduce": {"parts": "PTH", "out": "TH"},
}  # fmt: skip
SHRINK: Mapping[str, str] = {
    "norm": "TH", "rotary": "TQ", "linear": "TNK", "attention": "GTS", "activation": "TF", "router": "T",
    "experts": "T", "embedding": "TH", "logprob": "TV", "residual": "THU", "reduce": "THP",
}  # fmt: skip
"""Axes in the order in which they are tried."""
NAMES = {
    "T": "rows", "H": "columns", "N": "outputs", "K": "K", "Q": "heads", "G": "key heads", "S": "keys", "F": "columns",
    "V": "vocabulary", "P": "parts", "U": "updates",
}  # fmt: skip

ONLY_SELECT: Mapping[str, str] = {
    "norm": "T", "rotary": "TQ", "linear": "TN", "attention": "GT", "activation": "TF", "router": "T", "experts": "T",
    "embedding": "TH", "logprob": "T", "residual": "TH", "reduce": "TH",
}  # fmt: skip
"""Axes whose other indices do not enter an output element: what is kept must keep its bits."""


def size(seen: Observation, letter: str) -> int:
    """Length of an axis."""
    for role, letters in SHAPES[seen.kind].items():
        if letter in letters and seen.has(role):
            return seen[role].shape[letters.index(letter)]
    return seen.rollout.shape[SHAPES[seen.kind]["out"].index(letter)]


def differing(seen: Observation, letter: str) -> torch.Tensor | None:
    """Differing output elements per index of an axis; None: the output does not have it."""
    letters = SHAPES[seen.kind]["out"]
    hit = bits(seen.rollout) != bits(seen.trainer)
    if letter == "G":
        return per_index(hit, letters.index("Q")).view(size(seen, "G"), -1).sum(-1)
    return per_index(hit, letters.index(letter)) if letter in letters else None


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """As integers of the element's size."""
    return tensor.contiguous().view(
        {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    )


def kept(seen: Observation, letter: str, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What both outputs were on these indices; None: the axis changes the values."""
    if letter not in ONLY_SELECT[seen.kind]:
        return None
    ratio = seen["q"].shape[1] // seen["k"].shape[1] if letter == "G" else 1
    dim = SHAPES[seen.kind]["out"].index("Q" if letter == "G" else letter)
    first, length = start * ratio, count * ratio
    return seen.rollout.narrow(dim, first, length), seen.trainer.narrow(dim, first, length)


def per_index(hit: torch.Tensor, dim: int) -> torch.Tensor:
    """Counts along one axis."""
    return hit.movedim(dim, 0).reshape(hit.shape[dim], -1).sum(-1)


def take(seen: Observation, letter: str, start: int, count: int) -> Observation | None:
    """The operator on indices [start, start + count) of an axis, outputs not yet made anew; None: not possible."""
    index = torch.arange(start, start + count)
    if seen.kind == "logprob" and letter == "V":
        return vocabulary(seen, index)
    if seen.kind == "attention" and letter in "STG":
        return attention(seen, letter, start, count)
    return select(seen, {letter: index})


def select(seen: Observation, chosen: Mapping[str, torch.Tensor]) -> Observation:
    """Index every input along these axes."""
    inputs = {}
    for role, tensor in seen.inputs.items():
        for dim, letter in enumerate(SHAPES[seen.kind].get(role, "")):
            if letter in chosen:
                tensor = tensor.index_select(dim, chosen[letter].to(tensor.device))
        inputs[role] = tensor.contiguous()
    position = seen.position
    if position is not None and "T" in chosen and len(position) > int(chosen["T"].max()):
        position = position[chosen["T"]]
    return replace(seen, inputs=inputs, position=position)


def vocabulary(seen: Observation, index: torch.Tensor) -> Observation | None:
    """These lanes and those of the tokens themselves."""
    token_T = seen["token"].long()
    if int(token_T.max()) >= int(seen.number("vocabulary", seen["logits"].shape[1])):
        return None
    lanes = torch.unique(torch.cat([index, token_T.cpu()]))
    few = seen["logits"][:, lanes.to(token_T.device)].contiguous()
    smaller = replace(seen, inputs={**seen.inputs, "logits": few})
    inputs = {**smaller.inputs, "token": torch.searchsorted(lanes, token_T.cpu()).to(token_T.device)}
    scalars = {key: value for key, value in seen.scalars.items() if key != "vocabulary"}
    return replace(smaller, inputs=inputs, scalars=scalars)


def attention(seen: Observation, letter: str, start: int, count: int) -> Observation | None:
    """Heads in groups; queries as a run that ends the keys; keys from the front off."""
    if letter == "G":
        ratio = seen["q"].shape[1] // seen["k"].shape[1]
        heads = torch.arange(start * ratio, (start + count) * ratio)
        return select(seen, {"G": torch.arange(start, start + count), "Q": heads})
    if letter == "T":
        rows = select(seen, {"T": torch.arange(start, start + count)})
        last = int(rows["position"].max())
        return select(rows, {"S": torch.arange(last + 1)}) if last < seen["k"].shape[0] else None
    dropped, first = size(seen, "S") - count, int(seen["position"].min())
    if start + count != size(seen, "S") or dropped > first:
        return None
    shifted = replace(seen, inputs={**seen.inputs, "position": seen["position"] - dropped})
    return select(shifted, {"S": torch.arange(dropped, size(seen, "S"))})
