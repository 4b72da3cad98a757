"""Small random models, written as ordinary model folders: for tests, for the demo, for trying things out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


Family = Literal["qwen3", "qwen3_tied", "llama", "qwen3_moe"]
TINY: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "eos_token_id": 1,
    "bos_token_id": 0,
}
EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
NORM_SPREAD = 0.1


def write_tiny(
    folder: Path,
    family: Family = "qwen3",
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16",
    seed: int = 0,
    **sizes: Any,
) -> Path:
    """Write a random model of this family with `save_pretrained` (config.json, safetensors; no tokenizer).

    Norm weights are spread around one, since weights of ones hide faults and identify nothing.

    Args:
        folder: made if missing; must not hold a model already.
        sizes: any field of the family's config in place of TINY's (hidden_size, num_hidden_layers, vocab_size, ...).

    Returns:
        `folder`.

    Raises:
        UserError: unknown family, or the folder holds a model.
    """
    import torch

    if family not in get_args(Family):
        raise UserError(f"model family {family!r}", "not known", f"use one of {', '.join(get_args(Family))}")
    if (folder / "config.json").exists():
        raise UserError(str(folder), "holds a model already", "choose another folder or remove it")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _model(family, TINY | sizes)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.add_(torch.randn_like(parameter) * NORM_SPREAD)
        model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


def _model(family: Family, sizes: dict[str, Any]) -> Any:
    import transformers

    if family == "qwen3_moe":
        return transformers.Qwen3MoeForCausalLM(
            transformers.Qwen3MoeConfig(**(EXPERTS | sizes), tie_word_embeddings=False)
        )
    if family == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=False))
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, tie_word_embeddings=family == "qwen3_tied"))
