"""What can go through the gate, and what is refused before any process starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from samebits.kernels.candidate import describe
from samebits.tools.gate.candidate.runner import report, run_gate, target_of
from samebits.tools.gate.candidate.verb import result_of
from samebits.tools.schema.artifacts.candidate_gate import Green, NotRun, Red
from samebits.tools.schema.errors import UserError

GOOD = Path(__file__).parent / "good"


def edited(folder: Path, old: str, new: str) -> Path:
    shutil.copytree(GOOD, folder)
    toml = folder / "candidate.toml"
    text = toml.read_text(encoding="utf-8")
    assert old in text
    toml.write_text(text.replace(old, new), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('operator = "rms_norm"', 'operator = "rms"', "operator 'rms' is unknown"),
        ('kind = "pytorch"', 'kind = "numpy"', "kind = 'numpy'"),
        ('source = "kernel.py"', 'source = "../good/kernel.py"', "the name of a file in this folder"),
        ('source = "kernel.py"', 'source = "missing.py"', "no such file"),
        ('devices = ["cpu"]', "devices = []", "devices = []"),
        ('dtypes = ["float32"]', 'dtypes = ["fp8"]', "dtypes = ['fp8']"),
        ("hidden = 60", "width = 60", "hidden, residual"),
        ("backward = true", "backwards = true", "claims: known are"),
        ("backward = true", 'backward = "yes"', "claims.backward = 'yes'"),
        ("[claims]", "[claims", "not valid TOML"),
        ('kind = "pytorch"', 'kind = "pytorch"\ncolour = "red"', "unknown keys colour"),
    ],
)
def test_a_candidate_toml_that_cannot_be_used_is_refused(old: str, new: str, says: str, tmp_path: Path) -> None:
    folder = edited(tmp_path / "candidate", old, new)
    with pytest.raises(UserError, match=r"candidate\.toml") as error:
        target_of(str(folder))
    assert says in str(error.value)


def test_a_source_that_is_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "candidate"
    shutil.copytree(GOOD, folder)
    (tmp_path / "elsewhere.py").write_text("def run(): ...", encoding="utf-8")
    (folder / "kernel.py").unlink()
    (folder / "kernel.py").symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(UserError, match="no such file in this folder"):
        target_of(str(folder))


def test_neither_folder_nor_operator_is_refused_with_the_known_operators() -> None:
    with pytest.raises(UserError, match=r"embedding.*rms_norm"):
        target_of("no-such-thing")


def test_the_digest_changes_with_either_file(tmp_path: Path) -> None:
    first = describe(GOOD).digest
    assert describe(edited(tmp_path / "toml", "backward = true", "backward = false")).digest != first
    source = tmp_path / "source"
    shutil.copytree(GOOD, source)
    (source / "kernel.py").write_text((GOOD / "kernel.py").read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert describe(source).digest != first


def test_a_missing_mandatory_leg_is_never_a_pass(tmp_path: Path) -> None:
    target = target_of(str(GOOD))
    green = {leg: (Green(evidence="x", checked=1), 0.0) for leg in target.mandatory}
    assert report(target, green, True).verdict.kind == "passed"
    for leg in target.mandatory:
        without = {name: value for name, value in green.items() if name != leg}
        found = report(target, without, True)
        assert found.verdict.kind == "incomplete"
        assert leg in found.verdict.missing
        assert result_of(found, "x").exit_code == 2
        assert report(target, {**without, leg: (NotRun(reason="y"), 0.0)}, True).verdict.kind == "incomplete"


def test_a_red_leg_outweighs_all_green_ones(tmp_path: Path) -> None:
    target = target_of(str(GOOD))
    outcomes = {leg: (Green(evidence="x", checked=1), 0.0) for leg in target.mandatory}
    outcomes["time"] = (Red(what="slow"), 0.0)
    found = report(target, outcomes, True)
    assert found.verdict.kind == "stopped"
    assert result_of(found, "x").exit_code == 1


def test_a_candidate_for_another_device_stays_incomplete_here(tmp_path: Path) -> None:
    target = target_of(str(edited(tmp_path / "c", 'devices = ["cpu"]', 'devices = ["cpu", "cuda"]')), "cpu")
    found = report(target, {leg: (Green(evidence="x", checked=1), 0.0) for leg in target.mandatory}, True)
    assert found.verdict.kind == "incomplete"
    assert found.verdict.missing == ("all on cuda",)


def test_a_child_that_says_nothing_at_all_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    found, _ = run_gate(target_of(str(GOOD)), tmp_path / "run")
    assert found.verdict.kind == "stopped"
    assert found.verdict.leg == "builds"
