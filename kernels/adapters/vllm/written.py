"""Keys and values of Qwen3 go into vLLM's paged cache within samebits::normed_rotary: no launch of its own.

vLLM writes them in `unified_kv_cache_update`, called between rotation and attention. It is left out, and what it looks
up in the forward context is looked up here, in the piece of the compiled graph before. Nothing reads the layer's cache
in between, attention depends on the write by q, and this order is vLLM's own where it does not split the graph there.

A graph holds the addresses of cache and slots. Both runners keep the slots of a pass in one buffer and fill it up to
the graph's tokens with -1, for a dummy run all of it, so padding is written nowhere; a cache that is bound anew drops
the graphs. Before there is a cache (the run that measures memory) there are no slots, and nothing is written.

No `from __future__ import annotations`: the operator's schema is read from the types below, of which one is vLLM's.

Legend: T token rows, H query heads, G key/value heads, E head dim.
"""

import torch
from vllm.model_executor.layers.attention.attention import Attention, get_attention_context
from vllm.utils.torch_utils import LayerNameType, _encode_layer_name, _resolve_layer_name

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.vllm.attention import layer_of, split
from samebits.kernels.ops.normed_rotary.op import body
from samebits.kernels.ops.normed_rotary.pages import Pages
from samebits.kernels.ops.register import dispatched


@dispatched("normed_rotary_cache")
def normed_rotary_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    table: torch.Tensor,
    layer_name: LayerNameType,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [T, H, E] and k [T, G, E] normed and rotated; k and v [T, G, E] are then in the layer's cache.

    Raises:
        PatchError: a graph is captured before there is a cache: its replays would never write.
    """
    _, layer, kv_cache, slots = get_attention_context(_resolve_layer_name(layer_name))
    pages, size = None, layer.impl.head_size
    if slots is not None:
        known = layer_of(kv_cache, size) if q.is_cuda else None
        pages = Pages(v, *((known.keys, known.values) if known else split(kv_cache, size)), slots)
    elif q.is_cuda and torch.cuda.is_current_stream_capturing():
        raise PatchError(
            "a CUDA graph captured without slots of the KV cache",
            "would never write keys and values",
            "install a vLLM version that samebits was run on",
        )
    return body(q, k, q_weight, k_weight, eps, positions, table, pages)


@normed_rotary_cache.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    table: torch.Tensor,
    layer_name: LayerNameType,
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), torch.empty(k.shape, dtype=k.dtype, device=k.device)


class SamebitsWrittenAttention(Attention):
    """Attention over keys and values that samebits::normed_rotary_cache has written already."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output_shape: torch.Size | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """query [T, H * E], key and value [T, G * E] (not read: they are in the cache) -> [T, H * E]."""
        assert output_shape is None
        assert output_dtype is None
        output = torch.empty_like(query)
        torch.ops.vllm.unified_attention_with_output(
            query.view(-1, self.num_heads, self.head_size),
            key.view(-1, self.num_kv_heads, self.head_size),
            value.view(-1, self.num_kv_heads, self.head_size),
            output.view(-1, self.num_heads, self.head_size),
            _encode_layer_name(self.layer_name),
        )
        return output
