"""C++ and interpreted Triton go through the same legs as PyTorch."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samebits.tools.gate.candidate.runner import run_gate, target_of
from samebits.tools.gate.candidate.verb import run_build
from samebits.tools.job.job import Job
from samebits.tools.sandbox.processes import below
from samebits.tools.schema.artifacts.candidate_gate import CandidateGate
from samebits.tools.schema.requests import BuildRequest
from samebits.tools.store import artifact

HERE = Path(__file__).parent
ROOT = HERE.parents[3]


def test_a_cpp_candidate_has_the_bits_of_the_contract(tmp_path: Path) -> None:
    report, log = run_gate(target_of(str(HERE / "compiled")), tmp_path / "run", limit_s=1000)
    outcomes = {leg.name: leg.outcome for leg in report.legs}
    assert report.verdict.kind == "passed", (outcomes, log)
    assert outcomes["gradient"].status == "not_run"


def test_cpp_that_does_not_compile_is_red_with_the_compilers_words(tmp_path: Path) -> None:
    folder = tmp_path / "candidate"
    shutil.copytree(HERE / "compiled", folder)
    (folder / "kernel.cpp").write_text("#error no kernel here\n", encoding="utf-8")
    report, _ = run_gate(target_of(str(folder)), tmp_path / "run")
    assert report.verdict.kind == "stopped"
    outcome = report.legs[0].outcome
    assert outcome.status == "red"
    assert "no kernel here" in outcome.what


def blocks(path: Path) -> dict[str, str]:
    """The files that docs/candidates.md shows: a fenced block after a line `FILE:`."""
    found: dict[str, str] = {}
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if (
            line.startswith("```")
            and number >= 2
            and lines[number - 2].endswith(":")
            and lines[number - 2].startswith("`")
        ):
            end = lines.index("```", number + 1)
            found[lines[number - 2].strip("`:")] = "\n".join(lines[number + 1 : end]) + "\n"
    return found


def written_example(folder: Path) -> Path:
    """The worked example of docs/candidates.md as a folder."""
    files = blocks(ROOT / "docs" / "candidates.md")
    assert set(files) == {"candidate.toml", "kernel.py"}
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_the_worked_example_of_the_docs_is_red_nowhere_and_incomplete_without_a_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    candidate = written_example(tmp_path / "candidate")
    result = run_build(BuildRequest(candidate=str(candidate), device="cpu"), Job(folder))
    report = artifact.read(folder / result.ids["candidate_gate"], CandidateGate)
    assert report.interpreted
    assert report.verdict.kind == "incomplete", result.summary
    assert result.exit_code == 2
    statuses = {leg.name: leg.outcome.status for leg in report.legs}
    assert {name for name, status in statuses.items() if status == "not_run"} == {"paths", "gradient", "graphs", "time"}
    assert (folder / "events.jsonl").read_text(encoding="utf-8").count("green") >= 8


def test_a_wrong_mask_in_the_worked_example_writes_outside_and_is_red(tmp_path: Path) -> None:
    candidate = written_example(tmp_path / "candidate")
    source = candidate / "kernel.py"
    text = source.read_text(encoding="utf-8")
    old = "tl.store(y_ptr + row * width + col, y, mask=inside)"
    assert old in text
    source.write_text(text.replace(old, old.replace("inside", "col < width + 4")), encoding="utf-8")
    report, log = run_gate(target_of(str(candidate), "cpu"), tmp_path / "run")
    assert report.verdict.kind == "stopped", log
    assert report.verdict.leg == "contained"


def test_the_librarys_own_operator_goes_through_the_same_gate(tmp_path: Path) -> None:
    report, log = run_gate(target_of("embedding", "cpu"), tmp_path / "run")
    assert report.verdict.kind == "incomplete", log
    assert report.verdict.missing == ("all on cuda",)
    assert {leg.name for leg in report.legs if leg.outcome.status == "not_run"} == {"paths", "graphs", "time"}


def test_an_operator_that_is_its_contract_here_is_not_called_equal_to_it(tmp_path: Path) -> None:
    target = target_of("linear", "cpu")
    assert not target.interpreted
    report, log = run_gate(target, tmp_path / "run")
    outcomes = {leg.name: leg.outcome.status for leg in report.legs}
    assert outcomes["rows"] == "green", log
    assert outcomes["bits"] == outcomes["time"] == "not_run"
    assert report.verdict.kind == "incomplete"
    assert set(report.verdict.missing) == {"bits", "all on cuda"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rms_norm", "silu_mul", "rotary", "logprob", "attention", "attention_varlen"])
def test_every_library_operator_is_red_nowhere(name: str, tmp_path: Path) -> None:
    report, log = run_gate(target_of(name, "cpu"), tmp_path / "run")
    assert report.verdict.kind == "incomplete", ([leg for leg in report.legs if leg.outcome.status == "red"], log)


def running(pid: int) -> bool:
    """There, and no zombie."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_hanging_candidate_does_not_outlive_a_killed_job(tmp_path: Path) -> None:
    folder = tmp_path / "candidate"
    shutil.copytree(HERE / "good", folder)
    text = (folder / "kernel.py").read_text(encoding="utf-8")
    (folder / "kernel.py").write_text(text + "\nimport time\n\ntime.sleep(600)\n", encoding="utf-8")
    events = tmp_path / "run" / "legs.jsonl"
    call = "from pathlib import Path\nfrom samebits.tools.gate.candidate.runner import run_gate, target_of\n"
    call += f"run_gate(target_of({str(folder)!r}), Path({str(tmp_path / 'run')!r}))"
    job = subprocess.Popen([sys.executable, "-c", call])
    deadline = time.monotonic() + 500
    try:
        family: set[int] = set()
        while len(family) < 2 or not (events.is_file() and '"builds"' in events.read_text(encoding="utf-8")):
            assert job.poll() is None
            assert time.monotonic() < deadline, "there should be the judge, and the candidate below it"
            time.sleep(0.05)
            family = below(job.pid)
    finally:
        job.kill()
        job.wait()
    while any(running(pid) for pid in family):
        assert time.monotonic() < deadline, "the candidate's process is still there"
        time.sleep(0.05)
