"""Each planted fault is caught by its own leg, with every earlier leg green."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from samebits.tools.gate.candidate.runner import run_gate, target_of
from samebits.tools.schema.artifacts.candidate_gate import LegName


def load_planted() -> ModuleType:
    """planted.py beside this file; tests/ is no package."""
    spec = importlib.util.spec_from_file_location("samebits_planted", Path(__file__).parent / "planted.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


PLANTED = load_planted()
LEGS = get_args(LegName)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if fault.slow else []) for name, fault in PLANTED.FAULTS.items()],
)
def test_a_planted_fault_turns_its_leg_alone_red(name: str, tmp_path: Path) -> None:
    fault = PLANTED.FAULTS[name]
    candidate = PLANTED.plant(fault, tmp_path / "candidate")
    report, log = run_gate(target_of(str(candidate)), tmp_path / "run", limit_s=8 if name == "hangs" else 1000)
    outcomes = {leg.name: leg.outcome for leg in report.legs}
    assert report.verdict.kind == "stopped", log
    assert report.verdict.leg == fault.leg, outcomes[report.verdict.leg]
    assert fault.says in outcomes[fault.leg].what
    earlier = [leg for leg in LEGS[: LEGS.index(fault.leg)] if leg not in ("paths", "graphs")]
    assert [outcomes[leg].status for leg in earlier] == ["green"] * len(earlier)
    later = LEGS[LEGS.index(fault.leg) + 1 :]
    assert [outcomes[leg].status for leg in later] == ["not_run"] * len(later)


def test_every_leg_that_runs_on_this_machine_has_a_planted_fault() -> None:
    planted = {fault.leg for fault in PLANTED.FAULTS.values()}
    own_tests = {"paths", "graphs"}  # below: attention alone has paths; CUDA graphs need a GPU
    assert planted | own_tests == set(LEGS)


def test_attention_that_takes_another_kernel_behind_cached_pages_turns_paths_alone_red(tmp_path: Path) -> None:
    report, log = run_gate(target_of(str(PLANTED.plant_attention(tmp_path / "candidate"))), tmp_path / "run")
    outcomes = {leg.name: leg.outcome for leg in report.legs}
    assert report.verdict.kind == "stopped", log
    assert report.verdict.leg == "paths", outcomes[report.verdict.leg]
    assert "behind 16 cached tokens: row 16 has other bits than in the call 'prefill'" in outcomes["paths"].what
    assert {outcomes[leg].status for leg in LEGS[: LEGS.index("paths")]} == {"green"}


@pytest.mark.gpu
def test_a_candidate_that_synchronises_turns_graphs_alone_red(tmp_path: Path) -> None:
    report, log = run_gate(target_of(str(PLANTED.plant_synchronising(tmp_path / "candidate"))), tmp_path / "run")
    outcomes = {leg.name: leg.outcome for leg in report.legs}
    assert report.verdict.kind == "stopped", log
    assert report.verdict.leg == "graphs", outcomes[report.verdict.leg]
    assert {outcomes[leg].status for leg in LEGS[: LEGS.index("graphs")] if leg != "paths"} == {"green"}


def test_the_good_candidate_passes_every_leg_it_needs(tmp_path: Path) -> None:
    report, log = run_gate(target_of(str(PLANTED.GOOD)), tmp_path / "run")
    outcomes = {leg.name: leg.outcome for leg in report.legs}
    assert report.verdict.kind == "passed", (outcomes, log)
    assert {name for name, outcome in outcomes.items() if outcome.status != "green"} == {"paths", "graphs"}
    assert outcomes["bits"].checked >= 10
    assert outcomes["sweep"].checked > 1000
