"""vLLM's layers with samebits' operators: subclasses that the modules of a loaded model are turned into.

A subclass overrides `forward` itself, so it does not matter which custom ops vLLM's compile config enables: by default
none, and a class registered with `register_oot` would then run `forward_native`. The operators are opaque to the
compiler: no fusion pass finds a pattern in them.

Legend: T token rows, H query heads, G key/value heads, E head dim, K and N inputs and outputs of a linear.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.models.qwen3 import Qwen3Attention
from vllm.utils.torch_utils import _encode_layer_name

from samebits.kernels.adapters.vllm.written import normed_rotary_cache
from samebits.kernels.ops.embedding.op import embedding
from samebits.kernels.ops.linear.op import direct, linear, linear_float32
from samebits.kernels.ops.rms_norm.op import rms_norm
from samebits.kernels.ops.rotary.op import rotary
from samebits.kernels.ops.silu_mul.op import silu_mul


class SamebitsRMSNorm(RMSNorm):
    """samebits::rms_norm, samebits::add_rms_norm."""

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """x [..., D]: the norm; with a residual also the sum."""
        if residual is None:
            return rms_norm(x, self.weight.data, self.variance_epsilon)
        return rms_norm(x, self.weight.data, self.variance_epsilon, residual)


class SamebitsSiluAndMul(SiluAndMul):
    """samebits::silu_mul."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, 2 * I], gate before up."""
        gate, up = x.chunk(2, -1)
        return silu_mul(gate, up)


class SamebitsRotaryEmbedding(RotaryEmbedding):
    """samebits::rotary, on samebits' own table in `cos_sin_cache`."""

    def forward(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """query [T, H * E], key [T, G * E]."""
        assert key is not None, "layers that share keys are refused at start-up"
        q_THE, k_TGE = rotary(
            query.unflatten(-1, (-1, self.head_size)),
            key.unflatten(-1, (-1, self.head_size)),
            positions.flatten(),
            self.cos_sin_cache,
        )
        return q_THE.flatten(1), k_TGE.flatten(1)


class SamebitsLinearMethod(UnquantizedLinearMethod):
    """samebits::linear."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [T, K] -> [T, N]."""
        return linear(x, layer.weight.data, bias)


class SamebitsEmbeddingMethod(UnquantizedEmbeddingMethod):
    """samebits::embedding, and samebits::linear as lm_head."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [M, K] -> logits [M, padded V]."""
        return direct(x, layer.weight.data, bias)

    def embedding(self, layer: Any, input_: torch.Tensor) -> torch.Tensor:
        """ids [T] -> [T, K]."""
        return embedding(input_, layer.weight.data)


class SamebitsLogitsProcessor(LogitsProcessor):
    """samebits::linear_float32 as lm_head of an engine with head_dtype float32."""

    def _apply_head(
        self, lm_head: Any, hidden_states: torch.Tensor, embedding_bias: torch.Tensor | None
    ) -> torch.Tensor:
        """hidden_states [M, K] -> logits [M, padded V] float32."""
        return linear_float32(hidden_states, lm_head.weight.data, embedding_bias)


class SamebitsQwen3Attention(Qwen3Attention):
    """Norms of q and k, the rotation and the write into the KV cache in one launch: samebits::normed_rotary_cache."""

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """hidden_states [T, K] -> [T, K]."""
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], -1)
        q_THE, k_TGE = normed_rotary_cache(
            q.unflatten(-1, (-1, self.head_dim)),
            k.unflatten(-1, (-1, self.head_dim)),
            v.unflatten(-1, (-1, self.head_dim)),
            self.q_norm.weight.data,
            self.k_norm.weight.data,
            self.q_norm.variance_epsilon,
            positions.flatten(),
            self.rotary_emb.cos_sin_cache,
            _encode_layer_name(self.attn.layer_name),
        )
        # attn is a SamebitsWrittenAttention: it takes k and v as vLLM's does, so a capture finds them there.
        out: torch.Tensor = self.o_proj(self.attn(q_THE.flatten(1), k_TGE.flatten(1), v))[0]
        return out
