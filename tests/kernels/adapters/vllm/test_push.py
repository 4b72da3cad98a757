"""Weights go into a live engine of the same process from where they lie, and are copied there, not lent."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from samebits.kernels.adapters.transformers.checkpoint import checkpoint_tensors
from samebits.tools.sides.transformers.tiny import write_tiny

SMALL = {"num_hidden_layers": 2}
LIVE = """
import json, os
from samebits.kernels.api import engine_options
options = engine_options(device="cpu", max_model_len=128)
import torch
from vllm import LLM
from transformers import AutoModelForCausalLM
from samebits.kernels.adapters.vllm import push as vllm_push
from samebits.kernels.adapters.transformers.checkpoint import checkpoint_tensors
from samebits.tools.sides.vllm import weights
from samebits.tools.sides.vllm.push import expected_views, missing

llm = LLM("model", **options)
model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.bfloat16)
tied = model.config.tie_word_embeddings

def lost(state):
    return missing(expected_views(state, tied=tied), llm.collective_rpc(weights.read_back)[0])

def moved():
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05 * parameter.float().abs().mean())
    return checkpoint_tensors(model)

torch.manual_seed(0)
new = moved()
answer = {"before": len(lost(new)), "all": len(expected_views(new, tied=tied))}
answer |= {"lines": vllm_push.push(llm, model), "pushed": lost(new)}
newer = moved()
answer |= {"trainer moved on": lost(new), "newer": len(lost(newer))}
print("ANSWER " + json.dumps(answer), flush=True)
os._exit(0)
"""


def test_weights_in_place_are_the_models_own_memory() -> None:
    import copy

    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(
        Qwen3Config(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    )
    held = {parameter.data_ptr() for parameter in model.parameters()}
    lent, copied = checkpoint_tensors(model, in_place=True), checkpoint_tensors(copy.deepcopy(model))
    assert {tensor.data_ptr() for tensor in lent.values()} <= held
    assert not {tensor.data_ptr() for tensor in copied.values()} & held
    assert all(torch.equal(lent[name], copied[name]) for name in lent)
    assert set(lent) == set(copied)


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize(("family", "defect"), [("qwen3_tied", "tied head"), ("qwen3_moe", "experts")])
def test_what_was_pushed_stays_in_the_engine_while_the_trainer_goes_on(
    tmp_path: Path, family: str, defect: str
) -> None:
    write_tiny(tmp_path / "model", family, **SMALL)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIVE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("ANSWER ")).partition(" ")[2])
    assert answer["before"] > answer["all"] // 2, "the control: other weights are seen"
    assert answer["pushed"] == []
    assert defect in answer["lines"][1]
    assert answer["lines"][1].endswith("worked round")
    assert answer["trainer moved on"] == [], "the engine reads the trainer's own memory"
    assert answer["newer"] > answer["all"] // 2
