"""Attention of vLLM's CPU engine in pieces, so that a row of a long prefill has the bits of a decode step.

The kernel walks the keys tile by tile and adds up the softmax per tile. It takes the tile's size from half of the L2
cache less what the queries of the call need (csrc/cpu/cpu_attn_impl.hpp, `calcu_tile_size_with_constant_q`): as many
keys as fit. One loop step of queries leaves room for tens of thousands of keys, a decode step among them; a whole
prefill leaves room for a few hundred to a few thousand. Behind that many keys a row's bits follow how many rows are
computed with it: decode or prefill, chunks, cached prefixes, the split over threads. Pieces of one loop step each are
as good as decode steps, whatever they are cut from.

Imports torch where it is used: settings are read before torch may be.

Legend: S sequences, P pieces, W blocks of the paged cache.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from samebits.kernels.adapters.errors import PatchError

if TYPE_CHECKING:
    import torch

VARIABLE = "SAMEBITS_CPU_ATTN_PIECES"
"""Set to 1 it puts the pieces under an engine. The trainer's table "vllm" always computes so."""
STEP = {"vec": 8, "vec16": 16, "amx": 32}
"""Query heads of one loop step, by the kernel's instruction set (`MaxQHeadNumPerIteration`)."""
_GROUP = {"vec": 32, "vec16": 16, "amx": 32}
"""Keys that a tile is a multiple of (`BlockSizeAlignment`)."""
_QUERY = {"vec": 4, "vec16": 4, "amx": 2}
"""Bytes of a query element while the kernel works with it; scores and outputs have 4."""
_LOOP = 128
"""Most loop steps of one tile of queries (`MaxQTileIterNum`)."""


def asked() -> bool:
    """Whether this process's environment asks for pieces in the engine.

    Raises:
        PatchError: neither 0 nor 1.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise PatchError(f"{VARIABLE}={value}", "neither 0 nor 1", "set it to 1, or unset it")
    return value == "1"


def most_rows(isa: str, heads: int, kv_heads: int) -> int:
    """Token rows of one loop step of the kernel. One row is always a whole number of steps or fits in one.

    Args:
        isa: as vLLM names the kernel.
        heads, kv_heads: of queries, of keys and values. Heads of one group share a step where a whole number of groups
            fits, else each head goes by itself.
    """
    step, group = STEP.get(isa, 1), heads // kv_heads
    if step % group:
        return step
    return step // group


def keys_of_a_prefill(isa: str, head: int, element: int, cache: int) -> int | None:
    """Keys up to which a row has the bits of a decode step, however long the prefill that it is part of.

    Source: csrc/cpu/cpu_attn_impl.hpp of vLLM, `calcu_default_tile_size` and `calcu_tile_size_with_constant_q`.

    Args:
        head: size of a head, elements.
        element: bytes of an element of the KV cache.
        cache: bytes of the L2 cache, of which the kernel takes half.

    Returns:
        None: a kernel that is not known here, or no cache.
    """
    if isa not in STEP or cache <= 0:
        return None
    step, query, half = STEP[isa], _QUERY[isa], cache // 2
    tile = min(half // (head * (query + 2 * element + 4) + 4 * step), _LOOP * step)
    queries = max(tile // step, 1) * step
    keys = (half - queries * head * (query + 4)) // (4 * step + 2 * head * element)
    return max(keys // _GROUP[isa], 1) * _GROUP[isa]


def cut(
    starts_S1: torch.Tensor, lengths_S: torch.Tensor, table_SW: torch.Tensor, rows: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same token rows as more sequences, which share the blocks of the one they are cut from.

    Args:
        starts_S1: int32 [S + 1], first row of each sequence's queries.
        lengths_S: int32 [S], keys of each sequence; its queries are the last ones.
        table_SW: int32 [S, W].
        rows: most rows of a piece.

    Returns:
        The three for the pieces: int32 [P + 1], [P], [P, W].
    """
    import torch

    begin_S, end_S = starts_S1[:-1].long(), starts_S1[1:].long()
    count_S = (end_S - begin_S + rows - 1) // rows
    owner_P = torch.repeat_interleave(torch.arange(len(count_S)), count_S)
    number_P = torch.arange(len(owner_P)) - (count_S.cumsum(0) - count_S)[owner_P]
    first_P = begin_S[owner_P] + rows * number_P
    behind_P = end_S[owner_P] - torch.minimum(first_P + rows, end_S[owner_P])
    lengths_P = lengths_S[owner_P] - behind_P
    starts_P1 = torch.cat([first_P, starts_S1[-1:].long()])
    return starts_P1.int(), lengths_P.int(), table_SW[owner_P]
