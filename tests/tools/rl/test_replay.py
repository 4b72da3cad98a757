"""Routing replay in the trainer, and the table of captured experts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from samebits.tools.rl.compare import rows_of
from samebits.tools.rl.loop import Sampled
from samebits.tools.rl.policy import Policy
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Rl, Trainer
from samebits.tools.sides.protocol import RolloutData, Sequence
from samebits.tools.sides.transformers import replay
from samebits.tools.sides.vllm import routing

DATA = RolloutData(
    [Sequence([5, 6, 7], [8, 9]), Sequence([11, 12], [13, 14, 15]), Sequence([3], [4])],
    torch.zeros(6),
    torch.ones(6, dtype=torch.bool),
)
ROWS = 4 + 4 + 1
"""Fed tokens: the last sampled one of each sequence is not."""


@pytest.fixture(scope="module")
def policy(models: Callable[..., Path]) -> Policy:
    return Policy.load(
        models("qwen3_moe"), Trainer(layout="packed", micro_batch=2, dtype="float32"), "cpu", Rl(group=2)
    )


def own_choice(policy: Policy) -> torch.Tensor:
    with replay.chosen(policy.side.module) as notes:
        policy.recompute(DATA)
    return torch.stack([torch.cat(passes) for passes in notes], dim=1)


def under(policy: Policy, id_MLR: torch.Tensor) -> Any:
    batch = Sampled(DATA, torch.zeros(3))
    return replay.replayed(policy.side.module, id_MLR, rows_of(policy, batch))


def test_replaying_its_own_experts_moves_no_bit_and_others_do(policy: Policy) -> None:
    own_MLR = own_choice(policy)
    assert own_MLR.shape == (ROWS, 2, 2)
    plain_N = policy.recompute(DATA)
    with under(policy, own_MLR):
        assert torch.equal(policy.recompute(DATA), plain_N)
    other_MLR = own_MLR.clone()
    # The first fed token of the second sequence, first layer.
    other_MLR[4, 0] = torch.tensor([e for e in range(8) if e not in own_MLR[4, 0].tolist()][:2])
    with under(policy, other_MLR):
        moved_N = policy.recompute(DATA)
        assert torch.equal(own_choice(policy)[4, 0], other_MLR[4, 0])
    # The products of an expert have other bits in other company, so the other sequences are only close.
    assert torch.allclose(moved_N[:2], plain_N[:2], atol=1e-4)
    assert torch.allclose(moved_N[5:], plain_N[5:], atol=1e-4)
    assert float((moved_N[2:5] - plain_N[2:5]).abs().max()) > 1e-2
    assert torch.equal(policy.recompute(DATA), plain_N), "and afterwards the model is as it was"


def test_weights_are_the_softmax_over_the_given_experts_in_their_order(policy: Policy) -> None:
    """Softmax over all, gathered and divided by its sum, is the softmax of the gathered logits."""
    router = replay.routers(policy.side.module)[0]
    hidden_TD = torch.randn(3, router.weight.shape[1], generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[6, 1], [1, 6], [0, 7]])
    with replay.replayed(policy.side.module, ids[:, None].repeat(1, 2, 1), lambda: torch.arange(3)):
        logits_TX, weight_TR, id_TR = router(hidden_TD)
    assert torch.equal(id_TR, ids), "the order is kept"
    assert torch.allclose(weight_TR, logits_TX.gather(1, ids).softmax(-1), atol=1e-6)


def test_the_router_still_learns_under_replay(policy: Policy) -> None:
    weight = replay.routers(policy.side.module)[0].weight
    with under(policy, own_choice(policy)):
        policy.gradient(DATA, torch.ones(6))
    assert weight.grad is not None
    assert float(weight.grad.abs().max()) > 0


def test_routing_of_another_model_is_refused(policy: Policy, models: Callable[..., Path]) -> None:
    with (
        pytest.raises(UserError, match="3 layers of 2 experts, the trainer has 2 of 2"),
        under(policy, torch.zeros(ROWS, 3, 2, dtype=torch.int64)),
    ):
        pass
    dense = Policy.load(models("qwen3"), Trainer(layout="packed", dtype="float32"), "cpu", Rl(group=2))
    with pytest.raises(UserError, match="the trainer has 0 of 0"), under(dense, own_choice(policy)):
        pass


Route = tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]


def routes(ids: dict[tuple[int, int], list[int]], layer: int = 0) -> Route:
    sequence_T = torch.tensor([s for s, _ in ids] + [-1])
    position_T = torch.tensor([p for _, p in ids] + [0])
    return layer, sequence_T, position_T, torch.tensor([*ids.values(), [7, 7]])


def test_captured_experts_are_put_in_the_order_of_the_sequences() -> None:
    data = RolloutData([Sequence([5, 6], [7]), Sequence([8], [9, 1])], torch.zeros(3), torch.ones(3).bool())
    passes = [routes({(1, 0): [1, 2], (0, 0): [3, 4], (0, 1): [5, 6]}), routes({(1, 1): [0, 1]})]
    assert routing.by_row(passes, data, 1)[:, 0].tolist() == [[3, 4], [5, 6], [1, 2], [0, 1]]
    with pytest.raises(UserError, match="1 of 4 token rows were never computed"):
        routing.by_row(passes[:1], data, 1)
    with pytest.raises(UserError, match="computed twice with other experts"):
        routing.by_row([*passes, routes({(0, 1): [6, 5]})], data, 1)


def test_two_ways_to_get_the_routing_must_agree() -> None:
    captured = torch.tensor([[[1, 2]], [[3, 4]]])
    assert "returns no routing" in routing.same(captured, None)
    assert "equal to what the engine returns" in routing.same(captured, captured.clone())
    with pytest.raises(UserError, match="captured and returned experts differ"):
        routing.same(captured, captured.flip(-1))
