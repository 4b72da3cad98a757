"""Cutting one operator out: each side's code, shrinking, the folder, its exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from samebits.tools.diff.causes.name import KINDS, name_cause
from samebits.tools.diff.causes.observation import Observation
from samebits.tools.job.job import Job
from samebits.tools.repro import axes, evidence, operators
from samebits.tools.repro.verb import run_minimize
from samebits.tools.schema.artifacts.divergence import (
    Bits,
    Diverged,
    DivergenceManifest,
    Proof,
    WorkItem,
)
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.artifacts.repro import ReproManifest
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import MinimizeRequest
from samebits.tools.schema.sites import Site
from samebits.tools.store import artifact

GAP = GapStats(tokens=1, nonzero=1, nonfinite=0, max=1.0, mean=1.0, std=0.0, k3=0.0)
BITS = Bits(rows=1, rows_differing=1, elements=1, elements_differing=1, max_ulps=1, max_abs=1.0, value_equal_only=0)
PROOF = Proof(rollout_replay=True, trainer_replay=True, equal_until="the logprobs are equal", returns=True)


def divergence(folder: Path, seen: Observation, *, keep: bool = True) -> Path:
    """A Divergence artifact with one operator."""
    named = name_cause(seen)
    site = Site(module="model.op", port="out0")
    item = WorkItem(
        index=0, kind=seen.kind, rollout=(site,), trainer=(site,), between="model.op", inputs=(), bits=BITS,
        proof=PROOF, cause=named.cause, effect=GAP,
    )  # fmt: skip
    manifest = DivergenceManifest(
        outcome=Diverged(first=item), work=(item,), gap=GAP, unexplained=GAP, compared=1, not_compared=(), passes={}
    )
    (text, data), (content, tensors) = evidence.names(0), evidence.pack(seen, named)
    artifact.write(folder, manifest, {data: tensors} if keep else {}, {text: content} if keep else {})
    return folder


def minimize(tmp_path: Path, seen: Observation, **how: Any) -> tuple[Path, ReproManifest, Any]:
    source = divergence(tmp_path / "divergence", seen, **how)
    (tmp_path / "job").mkdir()
    result = run_minimize(MinimizeRequest(divergence=str(source)), Job(tmp_path / "job"))
    made = tmp_path / "job" / result.ids["repro"]
    return made, artifact.read(made, ReproManifest), result


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "repro.py"], cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )


def norm(rows: int = 40) -> Observation:
    make = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(rows, 128, generator=make).bfloat16() for _ in range(2))
    inputs = {"x": x, "residual": residual, "weight": torch.ones(128).bfloat16()}
    scalars = {"eps": 1e-6}
    ours, theirs = operators.vllm_plain_norm(inputs, scalars), operators.torch_norm(inputs, scalars)
    return Observation("norm", inputs, ours, theirs, scalars)


def split_k() -> Observation:
    """A rollout that no operator here gives: the plain arithmetic that was found stands for it."""
    make = torch.Generator().manual_seed(1)
    x, weight = torch.randn(64, 512, generator=make), torch.randn(96, 512, generator=make)
    parts = [a @ b.t() for a, b in zip(x.chunk(4, 1), weight.chunk(4, 1), strict=True)]
    ours = ((parts[0] + parts[1]) + parts[2]) + parts[3]
    return Observation("linear", {"x": x, "weight": weight}, ours, torch.nn.functional.linear(x, weight))


@pytest.fixture(scope="module")
def cut_norm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReproManifest, Any]:
    return minimize(tmp_path_factory.mktemp("norm"), norm())


def test_an_operator_is_cut_out_shrunk_and_differs_when_run(cut_norm: tuple[Path, ReproManifest, Any]) -> None:
    made, manifest, result = cut_norm
    assert manifest.after["T"] == 1
    assert manifest.after["H"] < 16
    assert "rows 40 -> 1" in (made / "README.md").read_text(encoding="utf-8")
    assert result.verdict == "differs"
    done = run(made)
    assert done.returncode == 1
    assert "rollout" in done.stdout
    assert "(0x" in done.stdout
    assert "note:" not in done.stdout


def test_a_plain_arithmetic_stands_for_a_side_and_needs_torch_alone(tmp_path: Path) -> None:
    made, manifest, _ = minimize(tmp_path, split_k())
    assert "splits:4" in manifest.rollout
    assert not manifest.needs_vllm
    text = (made / "repro.py").read_text(encoding="utf-8")
    assert "samebits" not in text
    assert "safetensors.torch" not in text


def test_the_script_says_equal_when_the_fault_is_gone(
    cut_norm: tuple[Path, ReproManifest, Any], tmp_path: Path
) -> None:
    made = Path(shutil.copytree(cut_norm[0], tmp_path / "copy"))
    path = made / "repro.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("return vllm_plain_norm(", "return torch_norm("), encoding="utf-8")
    done = run(made)
    assert done.returncode == 0
    assert "0 of" in done.stdout
    assert "note: the rollout side gives other bits here" in done.stdout


def test_the_script_says_so_when_it_cannot_run(cut_norm: tuple[Path, ReproManifest, Any], tmp_path: Path) -> None:
    made = Path(shutil.copytree(cut_norm[0], tmp_path / "copy"))
    (made / "inputs.safetensors").unlink()
    assert run(made).returncode == 2


def test_an_output_nobody_can_make_is_refused(tmp_path: Path) -> None:
    seen = norm()
    noise = seen.rollout.clone()
    noise[3, 5] += 1
    with pytest.raises(UserError, match="no code here gives its captured bits"):
        minimize(tmp_path, Observation(seen.kind, seen.inputs, noise, seen.trainer, seen.scalars))
    assert not list((tmp_path / "job").glob("repro*"))


def test_an_operator_without_evidence_and_a_wrong_index_are_refused(tmp_path: Path) -> None:
    source = divergence(tmp_path / "divergence", norm(), keep=False)
    (tmp_path / "job").mkdir()
    with pytest.raises(UserError, match=r"its inputs were not kept.*capture more"):
        run_minimize(MinimizeRequest(divergence=str(source), operator=0), Job(tmp_path / "job"))
    why = json.loads((source / "manifest.json").read_text(encoding="utf-8"))["work"][0]["cause"]["why"]
    with pytest.raises(UserError, match=r"no operator of its work list can be cut out\. operator 0: ") as none:
        run_minimize(MinimizeRequest(divergence=str(source)), Job(tmp_path / "job"))
    assert why in none.value.reason
    with pytest.raises(UserError, match="its work list has 1 operators"):
        run_minimize(MinimizeRequest(divergence=str(source), operator=1), Job(tmp_path / "job"))


def test_without_a_number_the_first_operator_that_can_be_is_cut_out_and_named(tmp_path: Path) -> None:
    whole = divergence(tmp_path / "whole", norm())
    manifest = artifact.read(whole, DivergenceManifest)
    second = manifest.work[0].model_copy(update={"index": 1})
    named = name_cause(norm())
    content, tensors = evidence.pack(norm(), named)
    text, data = evidence.names(1)
    source = tmp_path / "divergence"
    two = manifest.model_copy(update={"work": (manifest.work[0], second), "files": {}})
    artifact.write(source, two, {data: tensors}, {text: content})
    (tmp_path / "job").mkdir()
    result = run_minimize(MinimizeRequest(divergence=str(source)), Job(tmp_path / "job"))
    assert result.summary.startswith("Operator 1, the first that can be cut out: norm model.op")
    assert artifact.read(tmp_path / "job" / "repro", ReproManifest).operator == 1
    with pytest.raises(UserError, match="--operator 1"):
        run_minimize(MinimizeRequest(divergence=str(source), operator=0), Job(tmp_path / "job"))


def test_evidence_that_is_too_large_keeps_the_rows_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = norm(rows=100)
    trainer = seen.rollout.clone()
    trainer[77] = seen.trainer[77]
    monkeypatch.setattr(evidence, "LIMIT", 1 << 12)
    text, tensors = evidence.pack(Observation("norm", seen.inputs, seen.rollout, trainer), name_cause(seen))
    assert json.loads(text)["rows"] == len(tensors["rollout"]) == evidence.FEWEST
    assert not torch.equal(tensors["rollout"], tensors["trainer"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_input_with_token_rows_is_cut_with_them(kind: str) -> None:
    """One that is left whole fits no smaller operator, and then nothing shrinks."""
    declared = axes.SHAPES[kind]
    assert {role for role in KINDS[kind].row_roles if declared.get(role, "")[:1] not in ("T", "P")} == set()
