"""Sizes of real models, for random weights of their shape: fields of a transformers config. Imports nothing."""

from __future__ import annotations

from typing import Any

_QWEN3: dict[str, Any] = {
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
}
QWEN3: dict[str, dict[str, Any]] = {
    "0.6b": _QWEN3
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "1.7b": _QWEN3
    | {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "8b": _QWEN3
    | {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
}
TIED = ("0.6b", "1.7b")
"""Those whose head is the embedding."""
