"""Taps inside a compiled model: they stay in the graph, move no bit, and hold every row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from samebits.tools.schema.artifacts.capture import CaptureManifest
from samebits.tools.schema.experiment import Workload
from samebits.tools.schema.passes import Generate, How, Score
from samebits.tools.schema.sites import CapturePlan
from samebits.tools.sides import rollout_store
from samebits.tools.sides.vllm.taps import digest
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samebits.tools.sides.session import Session

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def taken(folder: Path) -> tuple[CaptureManifest, dict[str, str]]:
    manifest = artifact.read(folder, CaptureManifest)
    return manifest, {str(tap.site): tap.digest for tap in manifest.taps if tap.site.module.startswith("model.")}


def test_a_tapped_compiled_engine_gives_the_bits_of_the_untapped_one(
    start: Callable[..., Session], place: Path
) -> None:
    def scored(session: Session, name: str, how: How, plan: CapturePlan | None) -> torch.Tensor:
        session.ask(Score(rollout=str(place / "rollout"), how=how, folder=str(place / name), capture=plan))
        return rollout_store.read_scores(place / name).logprob_N.view(torch.int32)

    work = Workload(prompts=8, prompt_tokens=(3, 150), new_tokens=8)
    plain = start("qwen3", eager=False)
    plain.ask(Generate(workload=work, folder=str(place / "rollout")))
    data = rollout_store.read(place / "rollout")
    plain.stop()
    tapped = start("qwen3", eager=False, taps=True)
    assert torch.equal(scored(tapped, "whole", How(), CapturePlan()), data.logprob_N.view(torch.int32))
    scored(tapped, "cut", How(chunk=40, reverse=True), CapturePlan())
    tapped.stop()
    eager = start("qwen3", taps=True)
    scored(eager, "eager", How(), CapturePlan())
    (manifest, whole), (_, cut), (_, other) = (taken(place / name / "capture") for name in ("whole", "cut", "eager"))
    assert len(whole) == 1 + 4 * (2 + 4 + 2 + 2 + 2)
    assert {tap.rows for tap in manifest.taps if tap.site.module.startswith("model.")} == {
        sum(len(sequence.tokens) for sequence in data.sequences)
    }
    assert whole == cut
    assert whole["model.embed_tokens:out0"] == other["model.embed_tokens:out0"]
    assert whole["model.layers.0.self_attn.qkv_proj:in0"] != other["model.layers.0.self_attn.qkv_proj:in0"], (
        "compiling changes the first norm: taps that cannot show it show nothing"
    )


def test_other_taps_have_another_place_in_the_compile_cache() -> None:
    assert len({digest(None), digest(()), digest(("model.norm",))}) == 3
