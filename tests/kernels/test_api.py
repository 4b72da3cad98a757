"""The lines of the README's training loop, run as they stand on a real engine, and with one of them left out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from samebits.tools.guard import Guard
from samebits.tools.schema.errors import UserError
from samebits.tools.sides.transformers.tiny import write_tiny

ROOT = Path(__file__).resolve().parents[2]
PUSH = "trainer.push(llm)"
AROUND = '''
import json, os, sys, warnings
from pathlib import Path

def given():
    """What the README leaves to its reader."""
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    def update(logprob):
        (-(logprob * torch.randn(len(logprob), generator=torch.Generator().manual_seed(0))).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    batches = [[[2 + (7 * i + step) % 1000 for i in range(n)] for n in (3, 60, 130, 200)] for step in range(3)]
    return {"torch": torch, "model": model, "path": "model", "batches": batches, "update": update}

lines = Path("lines.py").read_text()
exec(lines, {"__name__": "readme"} | given())
from samebits.tools.guard import NotExact
os.chdir("without")
os.symlink("../model", "model")
try:
    exec("\\n".join(l for l in lines.splitlines() if "PUSH" not in l), {"__name__": "readme"} | given())
except NotExact as error:
    Path("raised").write_text(str(error))
os._exit(0)
'''


def readme_lines() -> str:
    blocks = (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n")[1:]
    return next(block.split("```")[0] for block in blocks if "engine_options" in block)


def test_the_three_names_fit_into_fifteen_lines() -> None:
    assert sum(1 for line in readme_lines().splitlines() if line.strip()) <= 15


def test_a_logprob_that_is_no_number_raises_with_the_mask_of_the_readme(tmp_path: Path) -> None:
    used = [line.strip() for line in readme_lines().splitlines() if "every" in line or "guard.check" in line]
    lp_N = torch.tensor([-1.0, -2.0, torch.nan])
    names = {"torch": torch, "reported": lp_N, "logprob": lp_N.clone(), "step": 0}
    names |= {"prompts": [[1]], "sampled": [[2, 3, 4]], "guard": Guard(tmp_path)}
    with pytest.raises(UserError, match="1 of 3 valid tokens have a logprob that is NaN"):
        exec("\n".join(used), names)
    # The same with a mask that is taken from the logprobs: nobody sees it.
    exec("\n".join(["every = reported < 1", *used[1:]]), names)


@pytest.mark.vllm
def test_the_lines_of_the_readme_are_exact_at_every_step_and_raise_when_weights_are_not_pushed(tmp_path: Path) -> None:
    write_tiny(tmp_path / "model", num_hidden_layers=2)
    (tmp_path / "lines.py").write_text(readme_lines(), encoding="utf-8")
    (tmp_path / "without").mkdir()
    code = AROUND.replace("PUSH", PUSH)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=1000)
    lines = [json.loads(line) for line in (tmp_path / "guard" / "guard.jsonl").read_text().splitlines()]
    assert [line["nonzero"] for line in lines] == [0, 0, 0]
    assert [line["max"] for line in lines] == [0.0, 0.0, 0.0]
    assert all(line["tokens"] > 32 for line in lines)
    assert "weight version 1" in (tmp_path / "without" / "raised").read_text()


@pytest.mark.slow
@pytest.mark.vllm
def test_the_lines_of_the_exact_zero_page_run(tmp_path: Path) -> None:
    write_tiny(tmp_path / "model", num_hidden_layers=2)
    page = (ROOT / "docs/exact-zero.md").read_text(encoding="utf-8")
    first, family = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    code = f"""
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.bfloat16)
prompts, sampled = [[1, 2, 3], [4, 5]], [[6, 7], [8]]
{first}
assert len(logprob) == 3 and logprob.requires_grad
{family}
trainer.checkpoint()
trainer.score(prompts, sampled).sum().backward()
trainer.undo()
stock = patch_trainer(model, roles={{"*": "stock"}})
assert all(name.startswith("stock") for name, _ in stock.read_back().values())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "vllm V1 sampler: float32 log_softmax" in done.stdout


@pytest.mark.slow
@pytest.mark.vllm
def test_the_lines_of_the_readme_are_proved_by_the_lock_of_a_gate_until_a_variable_is_changed(tmp_path: Path) -> None:
    from samebits.tools.schema.requests import GateRequest

    model = write_tiny(tmp_path / "model", num_hidden_layers=2)
    env = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "VLLM_CPU_ATTN_SPLIT_KV": "0", "SAMEBITS_CPU_ATTN_PIECES": "1"}
    experiment = {
        "device": "cpu",
        "rollout": {"model": str(model), "eager": True, "max_model_len": 512, "env": env},
        "trainer": {"kernels": "vllm", "env": env | {"VLLM_USE_FLASHINFER_SAMPLER": "0"}},
        "workload": {"prompts": 8, "prompt_tokens": (3, 100), "new_tokens": 8},
        "gate": {"min_tokens": 32},
    }
    asked = GateRequest.model_validate({"experiment": experiment, "axes": ("repeat", "trainer_repeat")})
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "request.json").write_text(asked.model_dump_json(), encoding="utf-8")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "ONEDNN_"))}
    subprocess.run([sys.executable, "-m", "samebits.tools.worker", "job"], cwd=tmp_path, env=own, check=True)
    shutil.copyfile(tmp_path / "job" / "samebits.lock", tmp_path / "samebits.lock")
    assert json.loads((tmp_path / "samebits.lock").read_text())["engine_sets"], "the engine sets variables of its own"
    (tmp_path / "lines.py").write_text(readme_lines() + "print(trainer.lines[0])\n", encoding="utf-8")
    code = AROUND.split('os.chdir("without")')[0] + "os._exit(0)"

    def loop(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=tmp_path, env=env, timeout=1000, capture_output=True, text=True, check=False)

    done = loop(own)
    assert (done.returncode, "proved by" in done.stdout) == (0, True), done.stderr[-2000:]
    changed = loop(own | {"ATEN_CPU_CAPABILITY": "avx2"})
    assert changed.returncode == 1
    assert "ATEN_CPU_CAPABILITY: proved without, now avx2" in changed.stderr
