"""`samebits capture` end to end on tiny transformers models, sides in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from samebits.tools.align.taps import Taps
from samebits.tools.capture.sink import Sink
from samebits.tools.capture.verb import chosen_modules, run_capture
from samebits.tools.job.job import Job
from samebits.tools.schema.artifacts.weights import ModuleView, SideModules
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Capture, Experiment, Trainer, Workload
from samebits.tools.schema.experiment import Rollout as RolloutConfig
from samebits.tools.schema.requests import CaptureRequest
from samebits.tools.schema.results import Result
from samebits.tools.schema.sites import CapturePlan

pytestmark = pytest.mark.usefixtures("sides_here")


def capture(
    models: Callable[..., Path], folder: Path, side: str = "trainer", *, rollout: str | None = None, **config: Any
) -> Result:
    model = str(models())
    trainer = {key: config.pop(key) for key in ("layout", "micro_batch") if key in config}
    folder.mkdir(exist_ok=True)
    experiment = Experiment(
        device="cpu",
        rollout=RolloutConfig(side="transformers", model=model, dtype="float32"),
        trainer=Trainer(dtype="float32", **trainer),
        workload=Workload(prompts=4, prompt_tokens=(3, 9), new_tokens=4),
        capture=Capture(**config),
    )
    request = CaptureRequest(experiment=experiment, side=side, rollout=rollout)  # type: ignore[arg-type]
    return run_capture(request, Job(folder))


def test_a_module_capture_moves_no_bit_and_lists_its_taps(models: Callable[..., Path], tmp_path: Path) -> None:
    result = capture(models, tmp_path)
    assert (result.verdict, result.exit_code) == ("done", 0)
    taps = Taps.open(tmp_path / result.ids["capture"])
    assert taps.manifest.same_logprobs is True
    assert result.total == len(taps.manifest.taps)
    assert taps.manifest.missing == 0
    assert "rollout" in taps.manifest.made_from
    assert {"model.embed_tokens:out0", "model.layers.1.mlp.down_proj:out0", "lm_head:out0", "logprob:out0"} <= set(
        taps.numbers
    )
    assert "same logprob bits" in result.summary


def test_padded_and_packed_and_single_calls_agree_on_what_is_computed_row_by_row(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    single = capture(models, tmp_path / "single")
    rollout = str(tmp_path / "single" / "rollout")
    found = [Taps.open(tmp_path / "single" / single.ids["capture"])]
    for layout in ("padded", "packed"):
        result = capture(models, tmp_path / layout, rollout=rollout, layout=layout, micro_batch=3)
        found.append(Taps.open(tmp_path / layout / result.ids["capture"]))
    for site in (
        "model.embed_tokens:out0",
        "model.layers.0.input_layernorm:out0",
        "model.layers.0:in.position_embeddings.0",
    ):
        assert len({taps.tap(site).digest for taps in found}) == 1, site
    assert len({taps.tap("model.layers.0.self_attn.q_proj:out0").rows for taps in found}) == 1


def test_decoding_with_a_cache_and_one_prefill_give_the_same_rows(models: Callable[..., Path], tmp_path: Path) -> None:
    trainer = capture(models, tmp_path / "trainer")
    rollout = capture(models, tmp_path / "rollout", "rollout", rollout=str(tmp_path / "trainer" / "rollout"))
    prefill, decode = (
        Taps.open(tmp_path / name / r.ids["capture"]) for name, r in (("trainer", trainer), ("rollout", rollout))
    )
    assert decode.manifest.passes > prefill.manifest.passes
    assert (decode.manifest.missing, decode.manifest.tokens) == (0, prefill.manifest.tokens)
    for site in ("model.embed_tokens:out0", "model.layers.0.input_layernorm:out0"):
        assert prefill.tap(site).digest == decode.tap(site).digest, site
    assert torch.equal(prefill.keys("model.norm:out0"), decode.keys("model.norm:out0"))


def test_layers_and_sequences_are_chosen_and_operators_run_again(models: Callable[..., Path], tmp_path: Path) -> None:
    result = capture(models, tmp_path, level="operator", layers=(1,), sequences=2, store="tensors")
    taps = Taps.open(tmp_path / result.ids["capture"])
    modules = {tap.site.module for tap in taps.manifest.taps}
    assert all(name.startswith("model.layers.1") for name in modules)
    assert "model.layers.1.self_attn.q_proj" in modules
    assert set((taps.keys("model.layers.1:out0") >> 32).tolist()) == {0, 1}
    assert taps.manifest.replays
    assert all(replay.equal for replay in taps.manifest.replays if replay.calls)
    assert "gave their bits again" in result.summary


def test_a_capture_over_its_budget_leaves_no_artifact(models: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="budget"):
        capture(models, tmp_path, level="operator", store="tensors", budget_mib=1)
    assert not (tmp_path / "capture").exists()
    assert not list(tmp_path.rglob("taps.safetensors"))


def test_a_capture_that_disturbs_the_run_says_so_first(
    models: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a recorder that hands on another tensor than it was given."""
    take = Sink.take

    def disturbing(self: Sink, place: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = take(self, place, tensor, *args, **kwargs)
        return out * 1.0001 if str(place.site) == "model.norm:out0" else out

    monkeypatch.setattr(Sink, "take", disturbing)
    result = capture(models, tmp_path)
    assert (result.verdict, result.exit_code) == ("differs", 1)
    assert result.summary.startswith("CAPTURE DISTURBS THE RUN")
    assert json.loads((tmp_path / "capture" / "manifest.json").read_text())["same_logprobs"] is False


def test_a_layer_that_is_not_there_is_named() -> None:
    tree = SideModules(
        role="trainer",
        modules=tuple(ModuleView(path=p, kind="K", calls=1, order=0) for p in ("", "h.0", "h.0.e.7", "h.1")),
    )
    assert chosen_modules(tree, Capture(layers=(0,))) == ("h.0", "h.0.e.7")
    assert chosen_modules(tree, Capture(layers=(0, 1), level="operator")) == ("h.0", "h.1")
    with pytest.raises(UserError, match="layer 5 is not in this model, which has layers 0 to 1"):
        chosen_modules(tree, Capture(layers=(5,)))


def test_plan_of_everything_needs_no_module_tree(models: Callable[..., Path]) -> None:
    from samebits.tools.capture.verb import plan_of

    assert plan_of(Capture(), None, 4) == CapturePlan()
    assert plan_of(Capture(sequences=9), None, 4).sequences == (0, 1, 2, 3)
