"""The worked example of docs/python-side.md, and what the protocol refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from samebits.tools.measure.gap import differs
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Rollout, Trainer, Workload
from samebits.tools.schema.passes import How, Open, Step
from samebits.tools.schema.sites import CapturePlan
from samebits.tools.sides.python.side import PythonSide

if TYPE_CHECKING:
    from samebits.tools.sides.protocol import RolloutData

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"
SIDE = "python:tiny_side:factory"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def opened(role: str = "trainer", side: str = SIDE, **config: Any) -> PythonSide:
    kind = Rollout if role == "rollout" else Trainer
    settings = kind(**({"side": side, "model": "seed-7", "dtype": "float32"} | config))
    return PythonSide.load(Open.model_validate({"role": role, "config": settings, "model": "seed-7", "device": "cpu"}))


def rollout() -> RolloutData:
    return opened("rollout").generate(Workload(prompts=4, prompt_tokens=(2, 9), new_tokens=6))


def test_the_example_decodes_with_its_cache_and_recomputes_the_same_logprobs(tmp_path: Path) -> None:
    data = rollout()
    scores = opened().score(data, How(), None, (), tmp_path)
    assert len(scores.logprob_N) == 24
    assert torch.allclose(scores.logprob_N, data.logprob_N, atol=1e-5)
    again = opened("rollout").score(data, How(), None, (), tmp_path)
    assert not differs(again.logprob_N, data.logprob_N).any()


def test_options_reach_the_factory(tmp_path: Path) -> None:
    data = rollout()
    plain = opened().score(data, How(), None, (), tmp_path).logprob_N
    assert differs(plain, opened(options={"scale": 2.0}).score(data, How(), None, (), tmp_path).logprob_N).any()


def test_a_padded_layout_gives_each_token_its_own_logprob(tmp_path: Path) -> None:
    data = rollout()
    single = opened().score(data, How(), None, (), tmp_path)
    padded = opened(layout="padded", micro_batch=3).score(data, How(), None, (), tmp_path)
    assert padded.facts["largest_batch"] == 3
    assert torch.allclose(padded.logprob_N, single.logprob_N, atol=1e-5)


def test_capture_changes_no_bit_and_taps_the_named_submodules(tmp_path: Path) -> None:
    from samebits.tools.schema.artifacts.capture import CaptureManifest
    from samebits.tools.store import artifact

    data = rollout()
    plain = opened().score(data, How(), None, (), tmp_path)
    captured = opened().score(data, How(), CapturePlan(), (), tmp_path)
    assert not differs(plain.logprob_N, captured.logprob_N).any()
    sites = {str(tap.site) for tap in artifact.read(tmp_path / "capture", CaptureManifest).taps}
    assert {"qkv:out0", "norm:out0", "head:out0", "logprob:in0", "logprob:out0"} <= sites


def test_without_a_cache_every_step_computes_the_prefix_again_and_capture_still_moves_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tiny_side

    monkeypatch.delattr(tiny_side.Tiny, "decode")
    side = opened("rollout")
    data = side.generate(Workload(prompts=3, prompt_tokens=(2, 9), new_tokens=4))
    assert side.describe()[0]["cache"] is False
    captured = side.score(data, How(), CapturePlan(), (), tmp_path)
    assert not differs(captured.logprob_N, data.logprob_N).any()
    assert (opened().score(data, How(), None, (), tmp_path).logprob_N - data.logprob_N).abs().max() < 1e-5


def test_an_update_changes_the_logprobs_and_its_saved_weights_bring_them_elsewhere(tmp_path: Path) -> None:
    data = rollout()
    trainer, other = opened(), opened()
    before = trainer.score(data, How(), None, (), tmp_path).logprob_N
    trainer.step(data, Step(rollout="", rate=0.5, save=str(tmp_path / "w.safetensors")))
    after = trainer.score(data, How(), None, (), tmp_path).logprob_N
    assert differs(before, after).any()
    other.push(tmp_path / "w.safetensors", 1, True)
    assert not differs(after, other.score(data, How(), None, (), tmp_path).logprob_N).any()


def returning(value: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A side whose factory returns `value`."""
    import sys

    monkeypatch.setitem(sys.modules, "made_here", SimpleNamespace(factory=lambda model, dtype, device: value))
    return "python:made_here:factory"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (SimpleNamespace(), "no `module`"),
        (SimpleNamespace(module=torch.nn.Linear(1, 1).eval()), "no `forward"),
        (SimpleNamespace(module=torch.nn.Linear(1, 1), forward=print), "training mode"),
    ],
)
def test_what_a_factory_returns_is_checked(value: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=said):
        opened(side=returning(value, monkeypatch))


@pytest.mark.parametrize(
    ("side", "said"),
    [
        ("python:tiny_side", "not of the form"),
        ("python:no_such_module_here:factory", "cannot be imported"),
        ("python:tiny_side:absent", "no function 'absent'"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(side: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        opened(side=side)


def test_arguments_the_factory_does_not_take_are_refused() -> None:
    with pytest.raises(UserError, match="does not take"):
        opened(options={"unheard": 1})


def test_packing_is_refused_without_the_promise() -> None:
    with pytest.raises(UserError, match="keeps packed sequences apart"):
        opened(layout="packed")


def test_a_sequence_beyond_the_model_is_refused(tmp_path: Path) -> None:
    data = rollout()
    data.sequences[2].prompt.extend([1] * 200)
    with pytest.raises(UserError, match="sequence 2 of the rollout"):
        opened().score(data, How(), None, (), tmp_path)
