"""What a proposal lacks, and a report that no worker of this user made, are said in the answer and to the reviewer."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from samebits.server.review import terminal
from samebits.tools.gate.candidate import verb as gate_verb
from samebits.tools.job.job import Job
from samebits.tools.propose.verb import run_propose
from samebits.tools.report import review as page
from samebits.tools.schema import gates, reviews
from samebits.tools.schema.artifacts.candidate_gate import CandidateGate, Leg, NotRun, Sandbox
from samebits.tools.schema.artifacts.proposal import ReproEvidence, ReproRun
from samebits.tools.schema.proposals import open_proposal
from samebits.tools.schema.requests import BuildRequest, ProposeRequest
from samebits.tools.store import artifact

WORDS = "not one that this user's worker made"
OPEN = Sandbox(kind="none", network=False, files=False, processes=False, memory_mib=1, why="no bwrap")


def shown(proposal: Path) -> tuple[str, str]:
    """The page and the terminal's text."""
    opened, out = open_proposal(proposal), io.StringIO()
    terminal.show(opened, "j/proposal", Console(file=out, width=300))
    return page.render(opened, None, id="j/proposal").replace("&#39;", "'"), out.getvalue()


def summary(kit: Any, project: Path, **changes: Any) -> str:
    """What propose_change answers."""
    started = kit.job(project, "propose")
    changes.setdefault("gate", str(kit.gate(started.folder / "candidate-gate", project / "kernels" / "norm")))
    fields = {
        "candidate": str(project / "kernels" / "norm"),
        "config": str(project / "samebits.toml"),
        "sides": kit.SIDES,
    }
    return run_propose(ProposeRequest.model_validate(fields | changes), started).summary


def test_a_report_that_a_file_was_made_of_is_shown_as_such_and_a_sealed_one_is_not(kit: Any, project: Path) -> None:
    forged = kit.propose(project)
    assert all(WORDS in text.lower() for text in shown(forged))
    assert WORDS in summary(kit, project)
    gates.seal(open_proposal(forged).manifest.made_from["candidate_gate"])
    assert not any(WORDS in text.lower() for text in shown(forged))


def test_the_worker_that_ran_the_gate_seals_its_report(
    kit: Any, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate's run has its own tests; here its report is put in its place."""
    report = artifact.read(kit.gate(tmp_path / "report", project / "kernels" / "norm"), CandidateGate)
    monkeypatch.setattr(gate_verb, "run_gate", lambda *_, **__: (report, "log"))
    job = kit.job(project, "build")
    gate_verb.run_build(BuildRequest(candidate=str(project / "kernels" / "norm"), device="cpu"), Job(job.folder))
    made = job.folder / "candidate-gate"
    assert gates.made_here(artifact.identity(made))
    assert WORDS not in summary(kit, project, gate=str(made))
    assert not gates.made_here(artifact.identity(tmp_path / "report")), "a seal is of one report"


@pytest.mark.parametrize("fault", ["another report's seal", "another key", "no key"])
def test_a_seal_that_was_moved_or_made_elsewhere_does_not_count(fault: str, tmp_path: Path) -> None:
    one, two = "1" * 64, "2" * 64
    gates.seal(one)
    gates.seal(two)
    assert gates.made_here(two)
    if fault == "another report's seal":
        gates.place(two).write_bytes(gates.place(one).read_bytes())
    elif fault == "another key":
        (reviews.home() / "review.key").write_bytes(b"k" * reviews.KEY_BYTES)
    else:
        (reviews.home() / "review.key").unlink()
    assert not gates.made_here(two)


def test_a_proposal_without_repro_or_timing_says_so_and_one_with_both_does_not(
    kit: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from samebits.tools.propose import repro as repros

    timed = summary(kit, project)
    assert "No repro was given, so what it repairs is not shown." in timed
    assert "not timed" not in timed
    legs = [*kit.LEGS[:-1], Leg(name="time", mandatory=False, seconds=0.0, outcome=NotRun(reason="switched off"))]
    place = kit.job(project, "build").folder / "candidate-gate"
    kit.gate(place, project / "kernels" / "norm", legs=legs)
    assert "It was not timed." in summary(kit, project, gate=str(place))
    before = ReproRun(status="differs", words="2 of 60 elements differ", differing=2, total=60, sandbox=OPEN)
    after = ReproRun(status="not_run", words="it cannot take the shape")
    evidence = ReproEvidence(
        operator_kind="norm", rollout="a", trainer="b", shrunk="rows 40 -> 3", before=before, after=after
    )
    monkeypatch.setattr(repros, "evidence", lambda *_, **__: evidence)
    folder = repro(project)
    said = summary(kit, project, repro=str(folder))
    assert "No repro" not in said
    assert "The repro after was not run." in said
    assert "The repro before ran UNSANDBOXED: not network closed" in said
    web, text = shown(kit.propose(project, repro=str(folder)))
    assert "The repro ran without a sandbox" in web
    assert "the repro before ran without a sandbox" in text


def repro(project: Path) -> Path:
    """A Repro artifact; what would run it is replaced."""
    from samebits.tools.schema.artifacts.repro import ReproManifest

    manifest = ReproManifest(
        operator=0, operator_kind="norm", rollout="a", trainer="b", needs_vllm=False, shrunk="rows 40 -> 3",
        before={"T": 40}, after={"T": 3}, runs=9, fingerprint="2 of 60",
    )  # fmt: skip
    folder = project / ".samebits" / "jobs" / "m" / "repro"
    artifact.write(folder, manifest, texts={"repro.py": "", "README.md": ""})
    return folder
