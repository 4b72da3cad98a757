"""Candidate folders under a trainer: they really run, with the contract's bits, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables.candidates import roles
from samebits.kernels.adapters.transformers.engine import patch
from samebits.tools.sides.transformers.tiny import write_tiny

IDS = torch.randint(2, 128, (1, 21), generator=torch.Generator().manual_seed(0))
ROTARY = """
import torch

SHIFT = 0

def turned(x, cos, sin):
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    c, s = cos[:, None, :], sin[:, None, :]
    wide = torch.cat([a * c - b * s, b * c + a * s], -1)
    return torch.cat([torch.where(torch.isnan(wide), torch.nan, wide.to(x.dtype)), rest], -1)

def run(q, k, positions, cache):
    cos, sin = cache[positions.long() + SHIFT].float().chunk(2, -1)
    return turned(q, cos, sin), turned(k, cos, sin)
"""
NORM = """
import torch
from samebits.kernels.ops.rms_norm.contract import contract

def run(x, weight, eps, residual=None):
    return contract(x, weight, eps, residual)
"""


def candidate(folder: Path, operator: str, source: str, **keys: Any) -> Path:
    folder.mkdir()
    settings = {"operator": operator, "kind": "pytorch", "devices": ["cpu"]} | keys
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in settings.items()]
    (folder / "candidate.toml").write_text("\n".join(lines) + "\n")
    (folder / "kernel.py").write_text(source)
    return folder


@pytest.fixture
def make(tmp_path: Path) -> Any:
    sizes = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 64, "head_dim": 64, "vocab_size": 128}
    folder = write_tiny(tmp_path / "model", "qwen3", **sizes)
    return lambda: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def test_candidates_play_their_roles_with_the_bits_of_the_table(make: Any, tmp_path: Path) -> None:
    folders = [candidate(tmp_path / "turn", "rotary", ROTARY), candidate(tmp_path / "norm", "rms_norm", NORM)]
    expected = patch(make(), "samebits").model(input_ids=IDS).logits
    patched = patch(make(), roles(folders))
    assert same(patched.model(input_ids=IDS).logits, expected)
    name, calls = patched.read_back()["rotary"]
    assert name.startswith("candidate turn ")
    assert name.endswith("for samebits::rotary")
    assert calls == 2
    assert patched.read_back()["norm"][0].startswith("candidate norm ")
    assert patched.read_back()["linear"][0] == "samebits::linear"


def test_a_candidate_with_other_bits_is_seen(make: Any, tmp_path: Path) -> None:
    wrong = candidate(tmp_path / "wrong", "rotary", ROTARY.replace("SHIFT = 0", "SHIFT = 1"))
    expected = patch(make(), "samebits").model(input_ids=IDS).logits
    assert not same(patch(make(), roles([wrong])).model(input_ids=IDS).logits, expected)


def test_gradients_are_those_of_the_librarys_operator(make: Any, tmp_path: Path) -> None:
    folders = [candidate(tmp_path / "turn", "rotary", ROTARY), candidate(tmp_path / "norm", "rms_norm", NORM)]
    models = [patch(make(), "samebits").model, patch(make(), roles(folders)).model]
    for model in models:
        model(input_ids=IDS).logits.float().logsumexp(-1).sum().backward()
    for (name, one), (_, other) in zip(*(model.named_parameters() for model in models), strict=True):
        assert one.grad is not None, name
        assert bool(one.grad.any()), name
        assert same(one.grad, other.grad), name


@pytest.mark.parametrize(
    ("operator", "keys", "said"),
    [
        ("rotary", {"dtypes": ["float32"]}, "does not claim dtype bfloat16"),
        ("rotary", {"devices": ["cuda"]}, "does not claim device cpu"),
        ("attention", {}, "is called by no role of a trainer"),
        ("rotary", {"kind": "magic"}, "kind = 'magic'"),
    ],
)
def test_what_cannot_play_is_refused_at_start_up(
    make: Any, tmp_path: Path, operator: str, keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(PatchError, match=said):
        patch(make(), roles([candidate(tmp_path / "one", operator, ROTARY, **keys)]))


def test_two_candidates_for_one_operator_are_refused(tmp_path: Path) -> None:
    folders = [candidate(tmp_path / name, "rotary", ROTARY) for name in ("one", "two")]
    with pytest.raises(PatchError, match="a second one for rotary"):
        roles(folders)
