"""The demo's verdict is exact only if every step saw what it must; the whole demo on a real engine is slow."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from samebits.tools.demo import verb
from samebits.tools.demo.exact import Planted, Proven
from samebits.tools.diff.triggers import likely
from samebits.tools.job.job import Job
from samebits.tools.schema.artifacts.divergence import DivergenceManifest, Identical
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.requests import DemoRequest

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.schema.results import Result

STEPS = 7


def gap(nonzero: int) -> GapStats:
    return GapStats(tokens=4, nonzero=nonzero, nonfinite=0, max=0.5 * nonzero, mean=0.0, std=0.0, k3=0.0)


def told(folder: Path, missed: int) -> Result:
    """The answer to seven steps of which step `missed` did not hold (0: all held)."""
    folder.mkdir()
    job = Job(folder)
    story = verb.Story(job)
    for number in range(1, STEPS + 1):
        story.tell(f"title {number}", "words", held=number != missed, stats=gap(0))
    found = DivergenceManifest(
        outcome=Identical(compared=4), work=(), gap=gap(0), unexplained=gap(0), compared=4, not_compared=(), passes={}
    )
    planted = Planted(found=True, text="there", stats=gap(1))
    proven = Proven(
        gap(0), gap(0), torch.zeros(4), ("replaced: x",), "pushed", 0.0, planted, 0.0, {"rollout": ("vllm",)}
    )
    return verb._finish(story, found, proven, [0.1, 0.2], "qwen3")


@pytest.mark.parametrize(
    ("left", "device", "switches", "cause", "held"),
    [
        (0, "cpu", {"SPLIT": "0"}, "order_batch", True),
        (1, "cuda", {}, "order_batch", True),
        (1, "cuda", {}, "unknown", False),
        (1, "cuda", {"SPLIT": "0"}, "order_batch", False),
        (1, "cpu", {}, "order_batch", False),
    ],
)
def test_what_stays_unexplained_is_let_pass_only_where_no_switch_is(
    left: int, device: str, switches: dict[str, str], cause: str, held: bool
) -> None:
    item = SimpleNamespace(cause=SimpleNamespace(name=cause))
    found: Any = SimpleNamespace(unexplained=gap(left), work=(item,))
    assert verb._explained(found, switches, device) is held


def test_seven_steps_that_held_are_exact(tmp_path: Path) -> None:
    answer = told(tmp_path / "demo", missed=0)
    assert answer.verdict == "equal"
    assert answer.closing == "verdict: exact (8 tokens)"


@pytest.mark.parametrize("missed", range(1, STEPS + 1))
def test_one_step_that_did_not_hold_is_named_and_nothing_is_exact(missed: int, tmp_path: Path) -> None:
    answer = told(tmp_path / "demo", missed)
    assert answer.verdict == "differs"
    assert f"not as it must be in step {missed} (title {missed})" in answer.closing
    assert "not as it must be" in (tmp_path / "demo/demo/report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_the_demo_tells_seven_true_steps(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    job = Job(folder)
    try:
        answer = verb.run_demo(DemoRequest(device="cpu"), job)
    finally:
        job.drop_prepared()
    assert answer.verdict == "equal", answer.summary
    assert [row["held"] for row in answer.rows] == [True] * STEPS
    assert answer.rows[0]["differ"] == "1024/1024"
    assert [row["differ"] for row in answer.rows[4:6]] == ["0/1024", "0/1024"]
    # Stock, with what step 2 switched off, with vLLM's operators: what one step opened serves the steps that want the
    # same.
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    opened = Counter(event["message"] for event in events if event["phase"] == "open")
    assert opened["loading the trainer side: transformers"] == 3
    assert opened["loading the rollout side: vllm"] == 1 + len(likely("cpu"))
    assert not job.prepared
