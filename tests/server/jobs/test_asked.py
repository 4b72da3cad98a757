"""A name that leads nowhere is refused before a job is made, in the worker's words."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from samebits.kernels.registry import OPERATORS
from samebits.tools.gate.candidate.runner import target_of
from samebits.tools.schema import asked
from samebits.tools.schema.artifacts.divergence import DivergenceManifest, Identical, WorkItem
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import REQUEST, MinimizeRequest

if TYPE_CHECKING:
    from pathlib import Path


def test_the_names_are_those_of_the_registry() -> None:
    assert asked.operators() == sorted(OPERATORS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("build", "silu_mull"), "neither a candidate folder nor a library operator. Next: give a folder, or one of"),
        (("build", "cand/nope"), "neither a candidate folder nor a library operator"),
        (("build", "cand"), "cand: no candidate.toml in it. Next: give a candidate's folder"),
        (("minimize", "nope"), "no divergence artifact here (no manifest.json). Next:"),
        (("propose", "cand", "--gate", "nope"), "cand: no candidate.toml in it"),
        (("propose", "good", "--gate", "nope"), "no candidate_gate artifact here"),
        (("apply", "nope"), "no proposal artifact here"),
    ],
)
def test_no_job_is_made_of_it(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    for name in ("cand", "good"):
        (tmp_path / name).mkdir()
    (tmp_path / "good" / "candidate.toml").touch()
    (tmp_path / "samebits.toml").touch()
    command = [sys.executable, "-m", "samebits.server.cli.main", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("cand:") <= 1, "the path is said once"
    assert not (tmp_path / ".samebits").exists()


def test_the_gate_for_candidates_says_the_same_by_itself(tmp_path: Path) -> None:
    for named in ("silu_mull", str(tmp_path)):
        with pytest.raises(UserError) as here:
            asked.check_named(named)
        with pytest.raises(UserError) as there:
            target_of(named, "cpu")
        assert str(here.value) == str(there.value)


def test_an_index_beyond_the_work_list_is_refused(tmp_path: Path) -> None:
    gap = GapStats(tokens=4, nonzero=0, nonfinite=0, max=0.0, mean=0.0, std=0.0, k3=0.0)
    item = WorkItem.model_construct(index=0)
    whole = DivergenceManifest(
        outcome=Identical(compared=4), work=(), gap=gap, unexplained=gap, compared=4, not_compared=(), passes={}
    )
    (tmp_path / "manifest.json").write_text(whole.model_dump_json())
    with pytest.raises(UserError, match=r"its work list has 0 operators\. Next: give an index of that list"):
        asked.check(MinimizeRequest(divergence=str(tmp_path), operator=0))
    one = whole.model_copy(update={"work": (item,)})
    asked.check_index(one, "it", 0)
    with pytest.raises(UserError, match="operator 1 of it: its work list has 1"):
        asked.check_index(one, "it", 1)


@pytest.mark.parametrize("given", [{"kind": "build", "candidate": "rms_norm"}, {"kind": "demo"}])
def test_what_is_there_passes(given: dict[str, Any]) -> None:
    asked.check(REQUEST.validate_python(given))
