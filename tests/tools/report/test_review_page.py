"""The page of one proposal: what is missing looks missing, text is escaped, one file and nothing fetched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from samebits.tools.report import charts, review
from samebits.tools.schema.artifacts.candidate_gate import CandidateGate, Green, Leg, NotRun, Passed, Sandbox
from samebits.tools.schema.artifacts.proposal import ProposalManifest, ProposedFile, ReproEvidence, ReproRun
from samebits.tools.schema.artifacts.review import ReviewManifest
from samebits.tools.schema.proposals import Proposal

PATCH = (
    "diff --git a/k/kernel.py b/k/kernel.py\nindex 1..2 100644\n--- a/k/kernel.py\n+++ b/k/kernel.py\n"
    "@@ -1,2 +1,2 @@\n import torch\n-y = x.sum()\n+y = fold(x)  # <b>\n"
)
REPRO = ReproEvidence(
    operator_kind="norm", rollout="a", trainer="b", shrunk="rows 40 -> 1",
    before=ReproRun(status="differs", words="3 of 9 elements differ", differing=3, total=9),
    after=ReproRun(status="equal", words="0 of 27 elements differ", total=27),
)  # fmt: skip
TIMED = Green(
    evidence="1.2", checked=1, numbers={"mean": 1.2, "lowest": 0.8, "f32, 1 rows: us": 5.0, "f32, 1 rows: ratio": 1.2}
)


def proposal(time: Green | NotRun = TIMED, patch: str = PATCH, **changes: Any) -> Proposal:
    gate = CandidateGate(
        candidate="c", operator="rms_norm", digest="d" * 64, contract_version=2, device="cpu", interpreted=False,
        dtypes=("float32",), shapes=({"hidden": 60},), verdict=Passed(),
        legs=(
            Leg(name="bits", mandatory=True, seconds=1.0, outcome=Green(evidence="<i>0 of 9</i>", checked=9)),
            Leg(name="time", mandatory=False, seconds=1.0, outcome=time),
        ),
    )  # fmt: skip
    fields: dict[str, Any] = {
        "made_from": {"candidate_gate": "e" * 64}, "created": 0.0, "why": "", "candidate": "c", "operator": "rms_norm",
        "candidate_digest": "d" * 64, "folder": "k", "source": "kernel.py", "config": "samebits.toml",
        "sides": ("rollout",), "repository": "/r", "base": "b" * 40, "base_subject": "s", "base_tree": "t", "tree": "u",
        "patch": "p" * 64, "paths": (ProposedFile(path="k/kernel.py", change="changed", before="x", after="y"),),
        "branch": "samebits/c",
    }  # fmt: skip
    return Proposal(Path("/j/proposal"), "a" * 64, ProposalManifest.model_validate(fields | changes), patch, gate)


def page(made: Proposal, decided: ReviewManifest | None = None, **changes: Any) -> str:
    return review.render(made, decided, id="j/proposal", **changes)


def decision(kind: Any, note: str = "") -> ReviewManifest:
    return ReviewManifest(
        decision=kind, note=note, patch="p", base="b", candidate_digest="d", evidence={}, surface="page", reviewer="me",
        time=0.0,
    )  # fmt: skip


def test_evidence_that_is_there_is_shown_in_figures() -> None:
    made = page(proposal(repro=REPRO))
    for text in ("2 of 2 legs green", ">3</span>", "1.20\u00d7", "3 of 9 elements differ", "lowest 0.80\u00d7"):
        assert text in made, text
    assert made.count("<rect") == 1


def test_evidence_that_is_missing_looks_missing() -> None:
    made = page(proposal(NotRun(reason="switched off")))
    for text in ("none given", "No repro was given", "not timed", "Not timed on cpu: switched off", "1 not run"):
        assert text in made, text
    assert "<rect" not in made
    undone = REPRO.model_copy(update={"after": ReproRun(status="not_run", words="it cannot")})
    assert page(proposal(repro=undone)).count("not run") >= 2


@pytest.mark.parametrize(
    ("kind", "text"), [("approved", "<b>Approved</b> by me"), ("rejected", "<b>Rejected</b> by me")]
)
def test_a_decision_is_shown_with_who_and_where(kind: str, text: str) -> None:
    made = page(proposal(), decision(kind, "a <note>"))
    assert text in made
    assert "a &lt;note&gt;" in made
    assert ("writes it to a new branch" in made) == (kind == "approved")


def test_a_gate_without_a_sandbox_is_said_at_the_top() -> None:
    made = proposal()
    held = Sandbox(kind="bubblewrap", network=True, files=True, processes=True, memory_mib=9)
    loose = held.model_copy(update={"kind": "none", "files": False, "why": "no namespaces here"})
    for sandbox, said in ((held, False), (loose, True), (None, True)):
        gate = made.gate.model_copy(update={"sandbox": sandbox})
        text = page(Proposal(made.folder, made.digest, made.manifest, made.patch, gate))
        assert ("without a sandbox" in text) is said
        assert ("no namespaces here" in text) is (sandbox is loose)


def test_what_others_wrote_is_escaped() -> None:
    made = page(proposal(why="<script>w</script>", base_subject="<script>s</script>", candidate="<script>c</script>"))
    body = made.split("</style>", 1)[1].rsplit("<script>", 1)[0]
    assert "<script>" not in body
    assert "&lt;i&gt;0 of 9" in made
    assert "&lt;b&gt;" in made


def test_unseen_characters_are_said_at_the_top() -> None:
    made = page(proposal(patch=PATCH.replace("fold(x)", "fold(\u202ex)")))
    assert "1 characters that the eye does not see" in made
    assert 'title="U+202E RIGHT-TO-LEFT OVERRIDE"' in made
    assert "\u202e" not in made
    assert "does not see" not in page(proposal())


def test_nothing_is_fetched_and_the_policy_names_its_own_style_and_script() -> None:
    made = page(proposal(repro=REPRO), token="t")
    assert not re.search(r'src\s*=|url\(|@import|https?://|style="|onclick', made)
    assert len(re.findall(r"'sha256-[^']+'", review.policy())) == 2
    assert '<input type="hidden" name="token" value="t">' in made


def test_ratios_fall_on_their_side_of_the_line() -> None:
    svg = charts.ratios([("slow", 0.5, "t"), ("even", 1.0, "t"), ("fast", 4.0, "t"), ("<x>", 0.0, "")], "label")
    bars = re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="\d+" width="([\d.]+)"', svg)
    middle = float(re.findall(r'class="axis" x1="([\d.]+)"', svg)[0])
    assert [css for css, _, _ in bars] == ["loss", "gain", "gain", "loss"]
    assert float(bars[0][1]) + float(bars[0][2]) == pytest.approx(middle, abs=0.2)
    assert float(bars[2][1]) == pytest.approx(middle, abs=0.2)
    assert float(bars[2][2]) == pytest.approx(2 * float(bars[0][2]), rel=0.01)
    assert "&lt;x&gt;" in svg
