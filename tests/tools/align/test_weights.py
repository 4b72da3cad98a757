"""Modules are paired by the weights they use, whatever they are called."""

from __future__ import annotations

from samebits.tools.align.weights import anchors
from samebits.tools.schema.artifacts.weights import SideWeights, WeightView


def view(module: str, rows: str, *, trivial: bool = False, name: str = "weight") -> WeightView:
    return WeightView(
        module=module,
        name=name,
        dtype="bfloat16",
        shape=(len(rows),),
        rows=tuple(rows),
        trivial=trivial,
        source="parameter",
    )


def side(*views: WeightView) -> SideWeights:
    return SideWeights(role="any", weights=views)


def told(rollout: SideWeights, trainer: SideWeights) -> list[tuple[str, str, tuple[int, int]]]:
    return [(anchor.rollout, anchor.trainer, anchor.rollout_rows) for anchor in anchors(rollout, trainer)]


def test_parts_are_found_inside_a_merged_weight() -> None:
    assert told(side(view("qkv", "abcdef")), side(view("q", "abc"), view("k", "de"), view("v", "f"))) == [
        ("qkv", "q", (0, 3)), ("qkv", "k", (3, 5)), ("qkv", "v", (5, 6)),
    ]  # fmt: skip


def test_the_merged_weight_may_be_on_the_trainer() -> None:
    found = anchors(side(view("gate", "ab"), view("up", "cd")), side(view("gate_up", "abcd")))
    assert [(anchor.rollout, anchor.trainer_rows) for anchor in found] == [("gate", (0, 2)), ("up", (2, 4))]


def test_a_weight_used_twice_is_paired_use_by_use() -> None:
    both = side(view("embed", "abc"), view("head", "abc"))
    assert [pair[:2] for pair in told(both, both)] == [("embed", "embed"), ("head", "head")]


def test_trivial_weights_and_biases_identify_nothing() -> None:
    ones = side(view("norm.0", "a", trivial=True), view("linear", "b", name="bias"))
    assert told(ones, ones) == []


def test_other_rows_are_no_pair() -> None:
    assert told(side(view("qkv", "abcdef")), side(view("q", "abd"))) == []


def test_a_padded_vocabulary_still_pairs() -> None:
    assert told(side(view("lm_head", "abc00")), side(view("lm_head", "abc"))) == [("lm_head", "lm_head", (0, 3))]
