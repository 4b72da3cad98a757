"""Switches of an engine that change an order of reduction. A cause is named when the difference follows the switch.

To add one: name the switch, its two settings and what it does. Nothing is believed of a row: the diff runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from samebits.kernels.adapters.setup import cpu_pieces


@dataclass(slots=True, frozen=True)
class Trigger:
    """An environment variable of the rollout side and the setting that takes the mechanism away."""

    device: Literal["cpu", "cuda"]
    kind: str
    """Kind of operator it acts on."""
    variable: str
    off: str
    meaning: str
    amx: bool = False
    """Acts only on a CPU with AMX."""


TRIGGERS = (
    Trigger(
        "cpu",
        "linear",
        "ONEDNN_MAX_CPU_ISA",
        "AVX512_CORE_BF16",
        "with AMX tiles the bfloat16 products of one row and of several rows add in another order",
        amx=True,
    ),
    Trigger(
        "cpu",
        "attention",
        "VLLM_CPU_ATTN_SPLIT_KV",
        "0",
        "with few sequences in flight the CPU attention splits the keys over threads and adds the parts up",
    ),
    Trigger(
        "cpu",
        "attention",
        cpu_pieces.VARIABLE,
        "1",
        "in a long prefill the CPU attention adds up the softmax over tiles of keys, whose size is what the queries "
        "computed with a row leave of the L2 cache; a decode step has one tile",
    ),
    Trigger(
        "cuda",
        "attention",
        "VLLM_BATCH_INVARIANT",
        "1",
        "outside its batch-invariant mode attention splits the keys by the work in the batch",
    ),
    Trigger(
        "cuda",
        "linear",
        "VLLM_BATCH_INVARIANT",
        "1",
        "without vLLM's batch-invariant mode cuBLAS splits K by the number of rows",
    ),
)


def for_kind(kind: str, device: str) -> list[Trigger]:
    """Triggers that can act on this kind of operator on this device."""
    return [trigger for trigger in TRIGGERS if trigger.kind == kind and trigger.device == device]


def likely(device: str) -> list[Trigger]:
    """Triggers that may act on this machine, in the order in which a search meets them. Only for what is made ready
    ahead: what is named has been tried."""
    amx = torch.cpu._is_amx_tile_supported()
    return [trigger for trigger in TRIGGERS if trigger.device == device and (amx or not trigger.amx)]
