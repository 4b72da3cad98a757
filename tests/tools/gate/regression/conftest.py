"""The gate on sides in this process that are exact by construction."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.schema.artifacts.regression import RegressionReport
    from samebits.tools.schema.results import Result

HERE = Path(__file__).parent
SIDE = "python:steady_side:factory"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of steady_side.py."""
    spec = importlib.util.spec_from_file_location("steady_writer", HERE / "steady_side.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written: Path = module.write(tmp_path_factory.mktemp("steady") / "model")
    return written


@pytest.fixture
def gated(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Result, Any]]:
    """gated(rollout={...}, trainer={...}, gate={...}, axes=..., job="name", stored="folder"): run the gate here, in a
    folder of that name when one is given, on a stored rollout when one is given.
    """
    from samebits.tools.gate.regression.verb import run_regression
    from samebits.tools.job.job import Job
    from samebits.tools.schema.artifacts.regression import RegressionReport
    from samebits.tools.schema.requests import GateRequest
    from samebits.tools.store import artifact

    monkeypatch.syspath_prepend(str(HERE))

    def run(**given: Any) -> tuple[Result, RegressionReport]:
        folder = tmp_path / given.pop("job", "")
        folder.mkdir(exist_ok=True)
        experiment = {
            "device": "cpu",
            "rollout": {"side": SIDE, "model": str(model), "dtype": "float32"} | given.pop("rollout", {}),
            "trainer": {"side": SIDE, "dtype": "float32", "layout": "padded", "logprob": "log_softmax"}
            | given.pop("trainer", {}),
            "workload": {"prompts": 6, "prompt_tokens": (2, 24), "new_tokens": 5},
            "gate": {"min_tokens": 20} | given.pop("gate", {}),
        }
        asked = {"experiment": experiment, "rollout": given.pop("stored", None), **given}
        result = run_regression(GateRequest.model_validate(asked), Job(folder))
        return result, artifact.read(folder / result.ids["regression"], RegressionReport)

    return run
