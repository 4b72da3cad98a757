"""Where an engine's pass writes its keys and values: slots of a paged cache.

T: tokens, G: key heads, D: head size, P: pages, S: slots of a page.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from samebits.kernels.ops.check import refuse

NAME = "normed_rotary"


@dataclass(slots=True, frozen=True)
class Pages:
    """Written by a call of normed_rotary: its rotated keys into `keys`, and a copy of v into `values`.

    Attributes:
        v: [T, G, D], rows and heads of any stride.
        keys: [P, S, G, D], pages, slots and heads of any stride.
        values: as keys.
        slots: int64, page * S + slot of each token; negative, or a token past their end: written nowhere.
    """

    v: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor


def check(k: torch.Tensor, pages: Pages) -> None:
    """Refuse what cannot be written; reads no value of a tensor. k [T, G, D]."""
    v, keys, values, slots = pages.v, pages.keys, pages.values, pages.slots
    if not (keys.dim() == 4 and keys.shape == values.shape and keys.shape[2:] == k.shape[1:] and v.shape == k.shape):
        refuse(NAME, f"k {tuple(k.shape)}, v {tuple(v.shape)}, pages {tuple(keys.shape)} and {tuple(values.shape)}")
    if not (k.dtype == v.dtype == keys.dtype == values.dtype and k.device == v.device == keys.device == values.device):
        refuse(NAME, f"k is {k.dtype} on {k.device}; v or the pages are not")
    if not (v.stride(2) == keys.stride(3) == values.stride(3) == 1):
        refuse(NAME, "the last dim of v and of the pages must be contiguous")
    fits = slots.dim() == 1 and slots.dtype == torch.int64 and slots.shape[0] <= k.shape[0]
    if not (fits and slots.is_contiguous() and slots.device == k.device):
        refuse(NAME, f"slots {tuple(slots.shape)} {slots.dtype}: contiguous int64, one per token at most, beside k")


def write(k: torch.Tensor, pages: Pages) -> None:
    """The rotated keys [T, G, D] and v into their slots, in plain PyTorch."""
    used = pages.slots >= 0
    size = pages.keys.shape[1]
    page, slot = pages.slots[used] // size, pages.slots[used] % size
    rows = pages.slots.shape[0]
    pages.keys[page, slot] = k[:rows][used]
    pages.values[page, slot] = pages.v[:rows][used]
