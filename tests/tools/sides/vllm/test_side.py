"""The real engine scores what it generated, in every way, and says what happened."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from samebits.tools.schema.artifacts.capture import CaptureManifest
from samebits.tools.schema.artifacts.weights import SideModules, SideWeights
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Rollout, Workload
from samebits.tools.schema.passes import Done, Generate, How, Modules, Open, Push, Score, Weights
from samebits.tools.schema.sites import CapturePlan, Flip, Site
from samebits.tools.sides import rollout_store
from samebits.tools.sides.transformers.tiny import write_tiny
from samebits.tools.sides.vllm.push import expected_views, missing, read_state
from samebits.tools.sides.vllm.side import VllmSide
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samebits.tools.schema.sites import Edit
    from samebits.tools.sides.protocol import RolloutData
    from samebits.tools.sides.session import Session

pytestmark = pytest.mark.vllm
WORK = Workload(prompts=12, prompt_tokens=(3, 180), new_tokens=12)


@pytest.fixture(scope="module")
def engine(start: Callable[..., Session]) -> Session:
    return start("qwen3")


@pytest.fixture(scope="module")
def rollout(engine: Session, place: Path) -> Path:
    engine.ask(Generate(workload=WORK, folder=str(place / "rollout")))
    return place / "rollout"


@pytest.fixture(scope="module")
def data(rollout: Path) -> RolloutData:
    return rollout_store.read(rollout)


class Asker:
    """Scores the module's rollout, each time into a new folder."""

    def __init__(self, engine: Session, rollout: Path, place: Path) -> None:
        self.engine, self.rollout, self.place, self.count = engine, rollout, place, 0

    def __call__(
        self, how: How, plan: CapturePlan | None = None, edits: tuple[Edit, ...] = ()
    ) -> tuple[torch.Tensor, torch.Tensor, Done]:
        self.count += 1
        self.folder = self.place / f"score{self.count}"
        reply = self.engine.ask(
            Score(rollout=str(self.rollout), how=how, folder=str(self.folder), capture=plan, edits=edits)
        )
        scores = rollout_store.read_scores(self.folder)
        return scores.logprob_N, scores.scored_N, reply


@pytest.fixture(scope="module")
def ask(engine: Session, rollout: Path, place: Path) -> Asker:
    return Asker(engine, rollout, place)


def same(a_N: torch.Tensor, b_N: torch.Tensor) -> bool:
    return torch.equal(a_N.view(torch.int32), b_N.view(torch.int32))


def test_it_says_what_runs(engine: Session) -> None:
    assert engine.opened is not None
    facts = engine.opened.facts
    assert (facts["runner"], facts["attention"], facts["logprobs_mode"]) == (
        "V1",
        "CPUAttentionBackend",
        "processed_logprobs",
    )
    assert facts["amx"] is False
    assert facts["isa"] != "amx"
    assert "strides" in str(facts["kv_cache"])
    assert "VLLM_CPU_ATTN_SPLIT_KV=0" in engine.opened.lines


def test_the_same_seed_gives_the_same_rollout(engine: Session, data: RolloutData, place: Path) -> None:
    engine.ask(Generate(workload=WORK, folder=str(place / "again")))
    again = rollout_store.read(place / "again")
    assert again.sequences == data.sequences
    assert same(again.logprob_N, data.logprob_N)
    engine.ask(Generate(workload=WORK.model_copy(update={"seed": 7}), folder=str(place / "other")))
    assert rollout_store.read(place / "other").sequences != data.sequences


@pytest.mark.parametrize(
    "how",
    [How(), How(concurrency=1), How(concurrency=5), How(reverse=True), How(path="prefill", stride=3)],
    ids=lambda how: how.model_dump_json(exclude_defaults=True),
)
def test_every_way_of_scoring_gives_the_bits_of_the_free_run(ask: Asker, data: RolloutData, how: How) -> None:
    logprob_N, scored_N, reply = ask(how)
    assert int(scored_N.sum()) == (len(logprob_N) if how.path == "decode" else len(logprob_N) // how.stride)
    assert same(logprob_N[scored_N], data.logprob_N[scored_N])
    assert reply.facts["tokens_other_than_stored"] == 0
    assert reply.facts["largest_batch"] == {1: 1, 5: 5}.get(how.concurrency or 0, reply.facts["largest_batch"])
    assert int(reply.facts["overruled"] or 0) > 0, (
        "the sampler drew every stored token by itself: forcing was not tried"
    )


def test_a_small_step_budget_cuts_prefills_and_mixes_them_with_decode(ask: Asker, data: RolloutData) -> None:
    logprob_N, _, reply = ask(How(chunk=48))
    assert reply.facts["largest_pass"] == 48
    assert int(reply.facts["chunked_prefills"] or 0) >= 6
    assert int(reply.facts["mixed_passes"] or 0) > 0
    assert same(logprob_N, data.logprob_N)
    _, _, usual = ask(How())
    assert usual.facts["chunked_prefills"] == 0


def test_warm_prompts_hit_the_prefix_cache_and_cold_ones_do_not(ask: Asker, data: RolloutData) -> None:
    logprob_N, _, reply = ask(How(warm_prefix=True))
    assert reply.facts["prefix_hit_tokens"] == 128 * sum(len(sequence.prompt) > 128 for sequence in data.sequences)
    assert int(reply.facts["prefix_hit_tokens"] or 0) > 0
    assert same(logprob_N, data.logprob_N)
    assert ask(How())[2].facts["prefix_hit_tokens"] == 0


def digests(folder: Path) -> tuple[CaptureManifest, dict[str, str]]:
    manifest = artifact.read(folder, CaptureManifest)
    return manifest, {str(tap.site): tap.digest for tap in manifest.taps if tap.rowset is not None}


def test_a_capture_holds_every_row_once_whatever_the_passes_were(ask: Asker, data: RolloutData) -> None:
    logprob_N, _, _ = ask(How(), CapturePlan())
    assert same(logprob_N, data.logprob_N)
    whole, whole_taps = digests(ask.folder / "capture")
    ask(How(chunk=48, concurrency=7, reverse=True), CapturePlan())
    cut, cut_taps = digests(ask.folder / "capture")
    fed = sum(len(sequence.tokens) for sequence in data.sequences)
    rows = {str(tap.site): tap.rows for tap in whole.taps}
    assert (rows["model.layers.3.mlp.down_proj:out0"], rows["logprob:out0"]) == (fed, len(logprob_N))
    assert (whole.missing, cut.missing, cut.recomputed) == (0, 0, 0)
    assert cut.passes > whole.passes
    inside = {site for site in whole_taps if "layers" in site or site.startswith("logprob")}
    assert len(inside) > 100
    assert {site for site in inside if whole_taps[site] != cut_taps[site]} == set()


def test_one_ulp_in_one_row_moves_that_sequence_from_there_on_and_nothing_else(ask: Asker, data: RolloutData) -> None:
    site = Site(module="model.layers.1.mlp.down_proj", port="out0")
    position = len(data.sequences[4].prompt) + 3
    logprob_N, _, _ = ask(How(), edits=(Flip(site=site, sequence=4, position=position),))
    moved = (logprob_N.view(torch.int32) != data.logprob_N.view(torch.int32)).view(-1, WORK.new_tokens)
    assert moved[[0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]].sum() == 0
    assert moved[4, :4].sum() == 0
    assert moved[4, 4:].any()


def test_stored_logits_give_the_reported_logprobs(ask: Asker, data: RolloutData) -> None:
    from safetensors.torch import load_file

    ask(How(), CapturePlan(modules=("logprob",), store="tensors"))
    manifest = artifact.read(ask.folder / "capture", CaptureManifest)
    stored = load_file(ask.folder / "capture" / "taps.safetensors")
    number = {str(tap.site): k for k, tap in enumerate(manifest.taps)}
    logits_NV, logprob_N = (stored[f"value.{number[name]}"] for name in ("logprob:in0", "logprob:out0"))
    sampled_N = torch.tensor([token for sequence in data.sequences for token in sequence.sampled])
    assert same(logprob_N.flatten(), data.logprob_N)
    assert same(logits_NV.log_softmax(-1, dtype=torch.float32).gather(1, sampled_N[:, None])[:, 0], data.logprob_N)


def test_prompts_come_from_a_file(engine: Session, place: Path) -> None:
    file = place / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt_ids": ids}) for ids in ([5, 6, 7], [9])), encoding="utf-8")
    engine.ask(Generate(workload=Workload(file=str(file), new_tokens=3, temperature=0), folder=str(place / "filed")))
    assert [sequence.prompt for sequence in rollout_store.read(place / "filed").sequences] == [[5, 6, 7], [9]]


def test_truncated_sampling_reports_renormalised_logprobs(engine: Session, place: Path) -> None:
    work = Workload(prompts=4, prompt_tokens=(5, 20), new_tokens=6, top_k=2, top_p=0.9, temperature=0.7)
    engine.ask(Generate(workload=work, folder=str(place / "narrow")))
    data = rollout_store.read(place / "narrow")
    assert bool((data.logprob_N > -2).all()), (
        "two tokens of a random model cannot be this improbable after renormalisation"
    )
    engine.ask(Score(rollout=str(place / "narrow"), folder=str(place / "narrow-score")))
    assert same(rollout_store.read_scores(place / "narrow-score").logprob_N, data.logprob_N)


def test_a_workload_beyond_the_engine_is_refused_and_the_engine_goes_on(
    engine: Session, ask: Asker, place: Path
) -> None:
    with pytest.raises(UserError, match="max_model_len = 512"):
        engine.ask(
            Generate(workload=Workload(prompts=1, prompt_tokens=(510, 510), new_tokens=5), folder=str(place / "long"))
        )
    assert not (place / "long").exists()
    with pytest.raises(UserError, match="chunk = 1000000"):
        ask(How(chunk=1_000_000))
    assert ask(How())[2].facts["tokens_other_than_stored"] == 0


def test_weights_are_read_back_through_the_operators(engine: Session, place: Path) -> None:
    engine.ask(Weights(folder=str(place / "weights")))
    held = SideWeights.model_validate_json((place / "weights" / "weights.json").read_text(encoding="utf-8"))
    state = read_state(place / "model-qwen3")
    assert {view.source for view in held.weights if view.module.endswith("qkv_proj")} == {
        "read back through the packed linear"
    }
    assert missing(expected_views(state, tied=False), held) == []
    state["model.layers.2.self_attn.k_proj.weight"][7, 9] += 1
    assert missing(expected_views(state, tied=False), held) == ["model.layers.2.self_attn.k_proj.weight"]


def test_modules_are_listed_in_the_order_of_their_calls(engine: Session, place: Path) -> None:
    engine.ask(Modules(folder=str(place / "modules")))
    seen = SideModules.model_validate_json((place / "modules" / "modules.json").read_text(encoding="utf-8")).modules
    called = [view.path for view in seen if view.calls]
    assert (
        called.index("model.layers.0.self_attn.qkv_proj")
        < called.index("model.layers.0.mlp.down_proj")
        < called.index("model.norm")
    )
    assert {view.path: view.calls for view in seen}["model.layers.0.self_attn.rotary_emb"] == 4


def test_pushed_weights_change_the_scores_and_the_old_ones_bring_them_back(
    engine: Session, ask: Asker, data: RolloutData, place: Path
) -> None:
    state = read_state(place / "model-qwen3")
    state["model.layers.1.mlp.up_proj.weight"] *= 1.5
    save_file(state, place / "moved.safetensors")
    lines = engine.ask(Push(weights=str(place / "moved.safetensors"), version=1)).lines
    assert lines[-1].startswith("47 of 47 weights read back equal")
    assert not same(ask(How())[0], data.logprob_N)
    engine.ask(Push(weights=str(place / "model-qwen3"), version=2))
    assert same(ask(How())[0], data.logprob_N)
    engine.ask(Generate(workload=WORK, folder=str(place / "pushed")))
    assert rollout_store.read(place / "pushed").weight_version == 2


def test_a_push_that_cannot_be_read_is_refused_and_nothing_moves(
    engine: Session, ask: Asker, data: RolloutData, place: Path
) -> None:
    (place / "broken.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(UserError, match=r"broken\.safetensors"):
        engine.ask(Push(weights=str(place / "broken.safetensors"), version=3))
    assert same(ask(How())[0], data.logprob_N)


def test_a_missing_model_is_one_sentence(place: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        VllmSide.load(Open(role="rollout", config=Rollout(), model=str(place / "nothing"), device="cpu"))


@pytest.mark.slow
def test_an_engine_that_refuses_its_settings_says_why(start: Callable[..., Session], place: Path) -> None:
    write_tiny(place / "small", "llama", max_position_embeddings=64)
    with pytest.raises(UserError, match=r"did not start.*max_model_len"):
        start("llama", model=str(place / "small"))
