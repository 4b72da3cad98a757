"""Axes of an engine whose answers are made up: which ways are asked for, and what a dependence on the batch does."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits.tools.gate.regression import engine_axes, judge, lengths, preemption, process_axes, verb
from samebits.tools.gate.regression.bench import Bench
from samebits.tools.job.job import Job
from samebits.tools.job.rollouts import Source
from samebits.tools.schema.experiment import Experiment
from samebits.tools.schema.passes import How
from samebits.tools.sides import rollout_store
from samebits.tools.sides.protocol import RolloutData, Scores, Sequence

BLOCK = 128


@dataclass
class Engine:
    """Stands in for Sides with a compiled engine (nothing can be moved inside): every token scores minus its
    position, plus what `fault` says for the way and the rollout at hand.
    """

    job: Job
    fault: Any = lambda how, data: 0.0
    experiment: Experiment = field(default_factory=lambda: Experiment.model_validate({"gate": {"min_tokens": 1}}))
    asked: list[How] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=lambda: {"compiled": "VLLM_COMPILE", "block_size": BLOCK})

    @property
    def described(self) -> dict[str, Any]:
        return {"rollout": SimpleNamespace(facts=self.facts)}

    def session(self, role: str) -> Any:
        return SimpleNamespace(opened=self.described[role])

    def score(self, _role: str, folder: Path, how: How | None = None, **_: Any) -> tuple[Scores, Path]:
        how, data = how or How(), rollout_store.read(folder)
        self.asked.append(how)
        lp_N = torch.tensor([-float(p + 1) for s in data.sequences for p in s.scored]) + self.fault(how, data)
        scored_N = torch.arange(len(lp_N)) % how.stride == 0
        facts: dict[str, Any] = {
            "largest_batch": how.concurrency or len(data.sequences),
            "passes": 7 if how.path == "prefill" else 5,
            "chunked_prefills": 1 if how.chunk else 0,
        }
        return Scores(lp_N, scored_N, facts), folder


def bench(folder: Path, prompts: list[int], new_tokens: int = 8, fault: Any = None) -> Bench:
    sequences = [Sequence([1] * n, [2] * new_tokens) for n in prompts]
    lp_N = torch.tensor([-float(p + 1) for s in sequences for p in s.scored])
    data = RolloutData(sequences, lp_N, torch.ones(len(lp_N), dtype=torch.bool))
    folder.mkdir(exist_ok=True)
    rollout_store.write(folder / "rollout", data, side="made up")
    engine: Any = Engine(Job(folder)) if fault is None else Engine(Job(folder), fault)
    made = Bench(engine, Source(folder / "rollout", data, "made up", False, True))
    made.plain["rollout"], _ = engine.score("rollout", folder / "rollout")
    engine.asked.clear()
    return made


def ran(axis: Any, made: Bench) -> judge.Tried:
    tried = judge.Tried()
    axis(made, tried)
    return tried


def outcome(tried: judge.Tried) -> Any:
    return judge.outcome(tried, 1)


@pytest.mark.parametrize(("needed", "among"), [(1, 40), (40, 40), (41, 72), (72, 72)])
def test_batch_asks_for_every_size_and_three_kinds_of_neighbours(tmp_path: Path, needed: int, among: int) -> None:
    made = bench(tmp_path / "a", [3] * 9)
    made.sides.experiment = Experiment.model_validate({"gate": {"min_tokens": needed}})
    tried = ran(engine_axes.batch, made)
    assert [how.concurrency for how in made.sides.asked] == [1, 2, 8, *[None] * 4]  # type: ignore[attr-defined]
    assert [way.stats.tokens for way in tried.compared] == [72, 72, 72, among, among, among, 72]
    assert tried.compared[-1].words == "all in flight against the same in a batch of 64"
    assert all(way.stats.exact for way in tried.compared)


def test_a_scale_taken_over_the_whole_batch_is_seen_through_its_content(tmp_path: Path) -> None:
    def scale(how: How, data: RolloutData) -> float:
        return 2.0**-12 if max(len(s.prompt) for s in data.sequences[1::2]) > 5 else 0.0

    tried = ran(engine_axes.batch, bench(tmp_path / "a", [9, 3, 4, 5], fault=scale))
    assert [way.stats.exact for way in tried.compared[:2]] == [True, True], "the sizes alone see nothing"
    found = outcome(tried)
    assert (found.status, found.way) == ("differs", "every second sequence among long neighbours (9 tokens)")


def test_a_size_that_changes_nothing_is_skipped_and_counts_for_nothing(tmp_path: Path) -> None:
    tried = ran(engine_axes.batch, bench(tmp_path / "a", [3, 4]))
    assert [text.split(":")[0] for text in tried.skipped] == ["all in flight against 2 at a time"]


def test_chunks_lie_around_the_edge_of_a_block(tmp_path: Path) -> None:
    made = bench(tmp_path / "a", [3, 200])
    tried = ran(engine_axes.chunked_prefill, made)
    asked = [(how.chunk, how.concurrency) for how in made.sides.asked]  # type: ignore[attr-defined]
    assert asked == [(127, 1), (128, 1), (129, 1), (66, None)]
    assert tried.skipped == []


@pytest.mark.parametrize("most", [1024, 512])
def test_the_largest_graph_is_tried_at_its_edge(tmp_path: Path, most: int) -> None:
    made = bench(tmp_path / "a", [3, 4, 5])
    sizes = [1, 2, 4, *range(8, 513, 8)]
    graphs = {"graphs": "FULL", "graph_sizes": ", ".join(map(str, sizes)), "most_in_flight": most}
    made.sides.facts |= graphs  # type: ignore[attr-defined]
    tried = ran(engine_axes.graph_buckets, made)
    tried_sizes = {int(way.words.split(" ")[-1]) for way in tried.compared if "in a batch of" in way.words}
    assert {512, 513} & tried_sizes == ({512, 513} if most > 512 else {512})
    assert len({size for size in tried_sizes if size in sizes}) == 2, "beside one sequence, a middle one and the last"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 10, 67])
def test_edges_are_spread_from_the_first_to_the_last(count: int) -> None:
    edges = list(range(count))
    for most in (3, 8):
        chosen = engine_axes.spread(edges, most)
        assert (chosen[0], chosen[-1], len(chosen)) == (0, count - 1, min(count, most))
        assert len(set(chosen)) == len(chosen)


def test_prompts_shorter_than_a_block_are_said_and_cut_elsewhere(tmp_path: Path) -> None:
    made = bench(tmp_path / "a", [3, 40])
    tried = ran(engine_axes.chunked_prefill, made)
    assert [how.chunk for how in made.sides.asked] == [15, 16, 17, 16]  # type: ignore[attr-defined]
    assert "the longest prompt has 40 tokens" in tried.skipped[0]


def test_thinned_tokens_are_due_and_no_more(tmp_path: Path) -> None:
    tried = ran(engine_axes.decode_prefill, bench(tmp_path / "a", [3] * 10, new_tokens=30))
    (way,) = tried.compared
    assert (way.stats.tokens, way.due) == (150, 150)
    assert "one token in 2" in way.words


@pytest.mark.parametrize(
    ("masked", "needed", "compared", "stride"),
    [(0, 64, 132, 2), (0, 132, 132, 2), (0, 133, 264, 1), (132, 64, 66, 2), (132, 132, 132, 1), (132, 500, 132, 1)],
)
def test_thinning_leaves_as_many_tokens_as_the_gate_needs(
    tmp_path: Path, masked: int, needed: int, compared: int, stride: int
) -> None:
    made = bench(tmp_path / "a", [3] * 33)
    made.sides.experiment = Experiment.model_validate({"gate": {"min_tokens": needed}})
    made.data.valid_N[:masked] = False
    tried = ran(engine_axes.decode_prefill, made)
    assert tried.compared[0].stats.tokens == tried.compared[0].due == compared
    assert made.sides.asked[0].stride == stride  # type: ignore[attr-defined]


def own_tokens(folder: Path, prompts: list[int], needed: int) -> Bench:
    """A rollout in which no two prompts hold the same token."""
    made = bench(folder, prompts)
    made.data.sequences = [
        Sequence([*range(1000 * i, 1000 * i + len(s.prompt))], s.sampled) for i, s in enumerate(made.data.sequences)
    ]
    made.sides.experiment = Experiment.model_validate({"gate": {"min_tokens": needed}})
    made.sides.facts["block_size"] = 16  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(("needed", "count"), [(1, 10), (80, 10), (81, 11), (256, 32), (1000, 125)])
def test_as_many_sequences_of_each_length_as_the_gate_needs_tokens(tmp_path: Path, needed: int, count: int) -> None:
    made = own_tokens(tmp_path / "a", [3, 40, 200, 90], needed)
    data, edges = lengths.at_edges(made)
    assert (edges, len(data.sequences)) == ([16, 32, 64], count)
    found = [len(s.prompt) for s in data.sequences]
    longest = made.sides.experiment.rollout.max_model_len - lengths.NEW
    assert found[:10] == [15, 16, 17, 31, 32, 33, 63, 64, 65, longest]
    assert found.count(longest) == 1
    counts = [found.count(length) for length in found[:9]]
    assert max(counts) - min(counts) <= 1
    assert len({(*s.prompt, *s.sampled) for s in data.sequences}) == count, "no two are equal"
    assert all(len(s.sampled) == lengths.NEW for s in data.sequences)
    tried = ran(lengths.lengths, made)
    assert [way.stats.tokens for way in tried.compared] == [8 * count] * 2
    assert tried.skipped == []


def test_a_rollout_with_too_few_windows_for_the_lengths_says_so(tmp_path: Path) -> None:
    made = own_tokens(tmp_path / "a", [3], 1000)  # ten tokens: no more than ten windows of each length
    tried = ran(lengths.lengths, made)
    assert [way.stats.tokens for way in tried.compared] == [80] * 2
    assert "its tokens make 10 different sequences" in tried.skipped[0]
    assert judge.outcome(tried, 1000).status == "too_few"


def test_where_nothing_can_be_moved_an_axis_is_not_run_and_says_so(tmp_path: Path) -> None:
    found = outcome(ran(engine_axes.order, bench(tmp_path / "a", [3, 4])))
    assert found.status == "not_run"
    assert "compiled engine (VLLM_COMPILE)" in found.reason


@pytest.mark.parametrize(
    ("kernels", "device", "varies", "taken"),
    [
        ("samebits", "cuda", True, True),
        ("samebits", "cuda", False, False),
        ("none", "cuda", True, False),
        ("samebits", "cpu", True, False),
    ],
)
def test_the_stock_engine_is_the_control_of_batch_where_its_rows_depend_on_their_company(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str, device: str, varies: bool, taken: bool
) -> None:
    """No GPU is asked: Engine stands in for both engines, the second one with a fault of its batch size."""
    made = bench(tmp_path / "a", [3, 4, 5])
    made.sides.experiment = Experiment.model_validate({"device": device, "rollout": {"kernels": kernels}})
    batch, restarted = ran(engine_axes.batch, made), judge.Tried(skipped=["not asked for"])
    batch.control = before = judge.comparison_control(made.data.logprob_N, made.data.valid_N)
    stock = Engine(made.sides.job, lambda how, _: 2.0**-12 if varies and how.concurrency == 1 else 0.0)
    monkeypatch.setattr(process_axes, "score_with", lambda session, _job, *rest: session.score(*rest))
    process_axes.stock_controls(made, stock, batch, restarted)  # type: ignore[arg-type]
    assert (batch.control is not before) == taken
    assert restarted.control is None
    if taken:
        assert batch.control.disturbed.startswith("vLLM's own operators")
        assert outcome(batch).status == "exact"


@pytest.mark.parametrize(
    ("device", "kernels", "known"), [("cpu", "none", True), ("cpu", "samebits", False), ("cuda", "none", False)]
)
def test_the_split_of_vllms_attention_is_a_control_only_where_that_attention_runs(
    tmp_path: Path, device: str, kernels: str, known: bool
) -> None:
    made = bench(tmp_path / "a", [3, 4])
    made.sides.experiment = Experiment.model_validate({"device": device, "rollout": {"kernels": kernels}})
    assert process_axes.switchable(made) is known


@pytest.mark.parametrize(
    ("device", "asked", "early"), [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)]
)
def test_what_logprob_mode_asks_of_the_engine_comes_before_preemption_closes_it_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, asked: bool, early: bool
) -> None:
    made = bench(tmp_path / "a", [3, 4])
    made.sides.experiment = Experiment.model_validate({"device": device})
    seen: list[bool] = []
    monkeypatch.setattr(verb, "_ahead", lambda *_: None)
    monkeypatch.setattr(process_axes, "switchable", lambda _: False)
    monkeypatch.setitem(verb.ENGINE, "preemption", lambda bench, tried: seen.append(bench.modes is not None))
    monkeypatch.setitem(verb.ENGINE, "logprob_mode", lambda bench, tried: seen.append(bench.modes is not None))
    verb._engine(made, ["preemption", "logprob_mode"] if asked else ["preemption"])
    assert seen == [early] * (1 + asked)
    if early:
        count = len(made.sides.asked)  # type: ignore[attr-defined]
        assert process_axes.own_modes(made) is made.modes
        assert len(made.sides.asked) == count  # type: ignore[attr-defined]


def test_preempted_sequences_cross_the_edge_of_a_block(tmp_path: Path) -> None:
    data = bench(tmp_path / "a", [3, 40, 200, 1]).data
    made = preemption.crossing(data, BLOCK)
    for sequence in made.sequences:
        assert len(sequence.prompt) < BLOCK < len(sequence.prompt) + len(sequence.sampled) - 1
    assert (made.valid_N.numel(), bool(made.valid_N.all())) == (32, True)
    longer = preemption.crossing(data, BLOCK, new=64)
    assert [s.prompt for s in longer.sequences] == [s.prompt for s in made.sequences]
    assert [len(s.sampled) for s in longer.sequences] == [64] * 4


@pytest.mark.parametrize(
    ("needed", "tokens"), [(1, 32), (32, 32), (33, 36), (256, 256), (10**6, 4 * (512 - 2 * BLOCK))]
)
def test_preempted_sequences_sample_what_the_gate_needs_as_far_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: int, tokens: int
) -> None:
    made = bench(tmp_path / "a", [3, 40, 200, 1])
    config = {"device": "cpu", "rollout": {"max_model_len": 512}, "gate": {"min_tokens": needed}}
    made.sides.experiment = Experiment.model_validate(config)
    longest: list[int] = []

    def again(sides: Any, _job: Job, role: str, folder: Path, how: How, **_: Any) -> Any:
        longest.append(max(len(s.prompt) + len(s.sampled) for s in rollout_store.read(folder).sequences))
        scores, where = sides.score(role, folder, how)
        scores.facts["recomputed_rows"] = 9
        return scores, where

    monkeypatch.setattr(Job, "open_side", lambda *_: nullcontext(made.sides))
    monkeypatch.setattr(preemption, "score_with", again)
    (way,) = ran(preemption.preemption, made).compared
    assert (way.stats.tokens, way.due) == (tokens, tokens)
    assert max(longest) <= 512


@pytest.mark.parametrize(
    ("prompts", "longest", "recomputed", "said"),
    [
        ([3, 4], 512, 9, "2 sequences"),
        ([3, 4, 5, 6], 130, 9, "max_model_len is 130"),
        ([3, 4, 5, 6], 512, 0, "no sequence was preempted"),
        ([3, 4, 5, 6], 512, 9, ""),
    ],
)
def test_preemption_counts_only_when_rows_were_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompts: list[int], longest: int, recomputed: int, said: str
) -> None:
    made = bench(tmp_path / "a", prompts)
    made.sides.experiment = Experiment.model_validate({"device": "cpu", "rollout": {"max_model_len": longest}})
    opened: list[dict[str, Any]] = []

    def small(_job: Job, _role: str, experiment: Experiment) -> Any:
        opened.append(dict(experiment.rollout.engine))
        return nullcontext(made.sides)

    def again(sides: Any, _job: Job, role: str, folder: Path, how: How, **_: Any) -> Any:
        scores, where = sides.score(role, folder, how)
        scores.facts["recomputed_rows"] = recomputed
        return scores, where

    monkeypatch.setattr(Job, "open_side", small)
    monkeypatch.setattr(preemption, "score_with", again)
    tried = ran(preemption.preemption, made)
    assert said in "; ".join(tried.skipped)
    assert len(tried.compared) == (not said)
    if opened:
        assert opened == [{"num_gpu_blocks_override": 1 + max(4, len(prompts) // 2)}]
