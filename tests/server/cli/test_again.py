"""The next step of an answer is for the experiment that was asked about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from samebits.server.cli import common, gate, main, show
from samebits.tools.schema.results import Result, Succeeded

if TYPE_CHECKING:
    from collections.abc import Callable


class Ran:
    folder = Path("job")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """shown(next, *command): what the command line prints for an answer with this next step."""

    def run(following: str, *command: str) -> str:
        outcome = Succeeded(result=Result(verdict="done", summary="", next=following))
        for module in (common, gate):
            monkeypatch.setattr(module, "start", lambda *_: Ran())
        monkeypatch.setattr(show, "follow", lambda *_, **__: outcome)
        return CliRunner().invoke(main.app, list(command)).stdout

    return run


@pytest.mark.parametrize("verb", ["measure", "diff", "inspect", "gate"])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_next_step_repeats_config_and_sets_quoted(
    verb: str, as_json: bool, tmp_path: Path, shown: Callable[..., str]
) -> None:
    file = tmp_path / "my py.toml"
    file.write_text("", encoding="utf-8")
    command = [verb, "-c", str(file), "--set", "workload.seed=1", "--set", "rollout.model=a b"]
    out = shown("samebits diff --rollout x", *command, *["--json"] * as_json)
    said = json.loads(out)["result"]["next"] if as_json else out
    assert f"samebits diff --config '{file}' --set workload.seed=1 --set 'rollout.model=a b' --rollout x" in said


def test_the_file_that_is_read_anyway_and_verbs_without_an_experiment_stay(
    tmp_path: Path, shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "samebits.toml").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "next: samebits diff --rollout x\n" in shown("samebits diff --rollout x", "measure")
    assert "next: samebits minimize x\n" in shown("samebits minimize x", "diff", "-c", "samebits.toml")
