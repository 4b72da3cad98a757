"""samebits' paged attention over vLLM's KV cache. Keys and values are written there by vLLM on CUDA, a copy, or where
the model norms its heads by samebits::normed_rotary (written.py).

Shape and strides of the cache are read from the tensor that the engine gives, whatever its layout.

Legend: T token rows, H query heads, G key/value heads, E head dim, P pages, S slots of a page.
"""

from __future__ import annotations

import operator
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.ops.attention.checks import check
from samebits.kernels.ops.attention.op import attention
from samebits.kernels.ops.normed_rotary.pages import Pages, write

SHORTEST = "samebits_shortest"
"""Attribute of a pass's metadata."""
CHECKED = "samebits_checked"
"""Attribute of a pass's metadata: the form of a call and the tables that were found to be in the contract."""
NO_QUERY = 1 << 30


def split(kv_cache: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [P, S, G, E] as views of a cache [P, G, S, 2 * E].

    Raises:
        PatchError: a cache of another shape.
    """
    if kv_cache.dim() != 4 or kv_cache.shape[3] != 2 * size:
        raise PatchError(
            f"a KV cache of shape {tuple(kv_cache.shape)}",
            f"is not [pages, heads, slots, {2 * size}]",
            "install a vLLM version that samebits was run on",
        )
    keys, values = kv_cache.transpose(1, 2).split(size, dim=-1)
    return keys, values


@dataclass(slots=True, frozen=True)
class Layer:
    """A layer's cache as attention reads it."""

    cache: weakref.ref[torch.Tensor]
    place: int
    size: int
    keys: torch.Tensor
    values: torch.Tensor
    form: tuple[Any, ...]
    """All that `check` asks of them."""
    facts: Any


LAYERS: dict[int, Layer] = {}
"""id of a cache -> what is known of it, while that tensor lives."""


def layer_of(kv_cache: torch.Tensor, size: int) -> Layer:
    """`split` of a cache on CUDA and what attention asks of it, worked out at its first pass."""
    known = LAYERS.get(id(kv_cache))
    # Another tensor may have the id of one that is gone, and a tensor may be given other memory.
    if known is not None and known.cache() is kv_cache and known.place == kv_cache.data_ptr() and known.size == size:
        return known
    from samebits.kernels.ops.attention.dispatch import facts_of

    keys, values = split(kv_cache, size)
    key = id(kv_cache)

    def gone(cache: weakref.ref[torch.Tensor], layers: dict[int, Layer] = LAYERS) -> None:  # also while Python ends
        if key in layers and layers[key].cache is cache:
            del layers[key]

    form = keys.shape, keys.stride(), values.stride(), keys.dtype, keys.device
    facts = facts_of(keys, values) if keys.numel() else None
    found = Layer(weakref.ref(kv_cache, gone), kv_cache.data_ptr(), size, keys, values, form, facts)
    LAYERS[key] = found
    return found


def attend(
    query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any, output: torch.Tensor, size: int, scale: float
) -> None:
    """Attention of the actual tokens of a pass into output [T, H, E]."""
    if metadata.causal is not True:
        raise PatchError("attention that is not causal", "is not in the contract", "use a decoder")
    tokens = metadata.num_actual_tokens
    q_THE, out_THE = query, output if output.shape == query.shape else output.view(query.shape)
    if q_THE.shape[0] != tokens:
        q_THE, out_THE = q_THE[:tokens], out_THE[:tokens]
    tables = metadata.block_table, metadata.query_start_loc, metadata.seq_lens
    longest = metadata.max_query_len, metadata.max_seq_len
    if not q_THE.is_cuda:
        out_THE.copy_(attention(q_THE, *split(kv_cache, size), *tables, *longest, scale))
        return
    from samebits.kernels.ops.attention.dispatch import run

    layer = layer_of(kv_cache, size)
    form = layer.form, q_THE.shape, q_THE.stride(), q_THE.dtype, q_THE.device, scale
    before, checked = getattr(metadata, CHECKED, (None, tables))
    if before != form or any(map(operator.is_not, checked, tables)):
        check(q_THE, layer.keys, layer.values, *tables, scale)
        setattr(metadata, CHECKED, (form, tables))  # for the other layers of the pass
    # A graph is captured with one batch and replayed with others: there nothing is known of the shortest.
    shortest = 0 if torch.cuda.is_current_stream_capturing() else getattr(metadata, SHORTEST, 0)
    run(q_THE, layer.keys, layer.values, *tables, *longest, scale, out_THE, shortest, layer.facts)


def note_shortest(metadata: Any, common: Any) -> Any:
    """The metadata of a pass, with the tokens of its shortest query that has any, once for all layers."""
    shortest = 1
    if common.max_query_len != 1:
        lengths = np.diff(common.query_start_loc_cpu.numpy())
        shortest = int(lengths[lengths > 0].min(initial=NO_QUERY))
    setattr(metadata, SHORTEST, shortest)
    return metadata


def implementations() -> dict[type, type]:
    """vLLM's implementation -> its subclass with samebits' attention, for this platform."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return _cpu()
    from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl

    class SamebitsFlashAttention(FlashAttentionImpl):
        """samebits::attention in place of FlashAttention's kernels."""

        def forward(
            self,
            layer: Any,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            kv_cache: torch.Tensor,
            attn_metadata: Any,
            output: torch.Tensor,
            output_scale: torch.Tensor | None = None,
            output_block_scale: torch.Tensor | None = None,
        ) -> torch.Tensor:
            """See FlashAttentionImpl.forward."""
            assert output_scale is None
            assert output_block_scale is None
            if attn_metadata is None:
                return output.fill_(0)
            attend(query, kv_cache, attn_metadata, output, self.head_size, self.scale)
            return output

    return {FlashAttentionImpl: SamebitsFlashAttention}


def _cpu() -> dict[type, type]:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    class SamebitsCPUAttention(CPUAttentionBackendImpl):
        """The contract of attention in plain PyTorch: for tests. The cache is written in rows, not packed."""

        def forward(
            self,
            layer: Any,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            kv_cache: torch.Tensor,
            attn_metadata: Any,
            output: torch.Tensor,
            output_scale: torch.Tensor | None = None,
            output_block_scale: torch.Tensor | None = None,
        ) -> torch.Tensor:
            """See CPUAttentionBackendImpl.forward."""
            if attn_metadata is not None:
                attend(query, kv_cache, attn_metadata, output, self.head_size, self.scale)
            return output

        def do_kv_cache_update(
            self,
            layer: Any,
            key: torch.Tensor,
            value: torch.Tensor,
            kv_cache: torch.Tensor,
            slot_mapping: torch.Tensor,
        ) -> None:
            """key, value [T, G, E] into their slots."""
            write(key, Pages(value, *split(kv_cache, self.head_size), slot_mapping))

    return {CPUAttentionBackendImpl: SamebitsCPUAttention}
