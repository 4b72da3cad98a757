"""The table "vllm" without an engine: hooks, contract, tables of angles."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables.vllm_hooks import CPU, match
from samebits.kernels.adapters.transformers.engine import patch, rotary_table
from samebits.tools.sides.transformers.tiny import write_tiny

pytestmark = pytest.mark.vllm


def model(folder: Path, family: Any = "qwen3", dtype: torch.dtype = torch.bfloat16, **sizes: int) -> Any:
    return AutoModelForCausalLM.from_pretrained(write_tiny(folder / family, family, **sizes), dtype=dtype)


def test_every_hook_is_where_the_table_says() -> None:
    match(CPU)


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        ("vllm._custom_ops", "rotary_embedding", ("query", "positions")),
        ("vllm._custom_ops", "rotary_embedding_gone", ()),
        ("vllm.gone", "rotary_embedding", ()),
        ("vllm.ir", "ops.rms_norm.impls.gone.impl_fn", ()),
    ],
)
def test_a_moved_hook_is_named(module: str, name: str, expected: tuple[str, ...]) -> None:
    with pytest.raises(PatchError, match=f"{module}.{name}"):
        match({**CPU, (module, name): expected})


def test_models_outside_the_operators_contract_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="dtype float16: is outside this table"):
        patch(model(tmp_path / "half", dtype=torch.float16), "vllm")
    with pytest.raises(PatchError, match="head size 24"):
        patch(model(tmp_path / "odd", head_dim=24), "vllm")
    with pytest.raises(PatchError, match="expert width 48"):
        patch(model(tmp_path / "narrow", "qwen3_moe", moe_intermediate_size=48), "vllm")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_table_of_angles_is_vllms(tmp_path: Path, dtype: torch.dtype) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    trainer = model(tmp_path, dtype=dtype)
    with set_current_vllm_config(VllmConfig()):
        engine = get_rope(64, 2048, rope_parameters=trainer.config.rope_parameters, dtype=dtype)
    assert torch.equal(rotary_table(trainer, 2048, dtype), engine.cos_sin_cache)


@pytest.mark.slow
def test_a_first_pass_of_two_tokens_does_not_end_the_process(tmp_path: Path) -> None:
    write_tiny(tmp_path / "qwen3", "qwen3")
    lines = f"""
        import torch
        from transformers import AutoModelForCausalLM
        from samebits.kernels.adapters.transformers.engine import patch
        model = AutoModelForCausalLM.from_pretrained({str(tmp_path / "qwen3")!r}, dtype=torch.bfloat16)
        print(bool(patch(model, "vllm").model(input_ids=torch.tensor([[3, 4]])).logits.isfinite().all()))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "True"


def test_the_vocabulary_is_padded_as_vllm_pads_it() -> None:
    from vllm.model_executor.layers.vocab_parallel_embedding import DEFAULT_VOCAB_PADDING_SIZE

    from samebits.kernels.adapters.tables import vllm_cpu, vllm_shared

    assert vllm_shared.VOCABULARY_MULTIPLE == DEFAULT_VOCAB_PADDING_SIZE
    x_MK, weight_VK = torch.randn(5, 32), torch.randn(100, 32)
    whole = vllm_cpu.linear(x_MK, torch.cat([weight_VK, torch.zeros(28, 32)]), None)
    assert torch.equal(vllm_shared.head(vllm_cpu.linear, x_MK, weight_VK, None), whole[:, :100])
