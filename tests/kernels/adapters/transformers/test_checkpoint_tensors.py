"""Weights under checkpoint names: copies, or the model's own tensors where the reader copies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from samebits.kernels.adapters.transformers.checkpoint import checkpoint_tensors
from samebits.tools.sides.transformers.tiny import write_tiny


@pytest.mark.parametrize("family", ["qwen3_tied", "qwen3_moe"])
def test_in_place_are_the_same_weights_and_no_copy(family: str, tmp_path: Path) -> None:
    write_tiny(tmp_path / "m", family, num_hidden_layers=1, hidden_size=64, vocab_size=64)  # type: ignore[arg-type]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.bfloat16)
    copies, own = checkpoint_tensors(model), checkpoint_tensors(model, in_place=True)
    assert list(copies) == list(own)
    assert all(torch.equal(copies[name], own[name]) for name in copies)
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in own.values())
    name = "model.embed_tokens.weight"
    held = model.model.embed_tokens.weight
    assert own[name].data_ptr() == held.data_ptr()
    with torch.no_grad():
        held[0, 0] += 1
    assert torch.equal(own[name], held)
    assert not torch.equal(copies[name], held), "the control: a copy does not move with the model"
