"""The trainer of the loop: its gradient against autograd written out, its updates, its checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from samebits.tools.rl import start
from samebits.tools.rl.loop import Sampled, learn
from samebits.tools.rl.policy import Policy
from samebits.tools.rl.task import Sort
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Rl, Trainer
from samebits.tools.sides.protocol import RolloutData, Sequence
from samebits.tools.sides.vllm.live import Head

SETTINGS = Rl(group=2, rate=1e-3)


def data(*sequences: tuple[list[int], list[int]]) -> RolloutData:
    count = sum(len(sampled) for _, sampled in sequences)
    lp_N = torch.full((count,), -3.0)
    return RolloutData([Sequence(*pair) for pair in sequences], lp_N, torch.ones(count, dtype=torch.bool))


BATCH = data(([2, 5, 6, 3], [5, 6]), ([2, 5, 6, 3], [7, 8, 9]), ([2, 9, 3], [4]), ([2, 9, 3], [4, 9]))


@pytest.fixture
def load(models: Callable[..., Path]) -> Callable[..., Policy]:
    def loaded(dtype: str = "float32", settings: Rl = SETTINGS, **config: Any) -> Policy:
        trainer = Trainer.model_validate({"layout": "packed", "micro_batch": 3, "dtype": dtype, **config})
        return Policy.load(models(dtype=dtype), trainer, "cpu", settings)

    return loaded


def written_out(policy: Policy, batch: RolloutData, coefficient_N: torch.Tensor) -> torch.Tensor:
    """The same gradient, one sequence at a time, the whole log-softmax."""
    policy.side.module.zero_grad()
    at = 0
    for sequence in batch.sequences:
        whole = torch.tensor([sequence.prompt + sequence.sampled])
        lp_LV = policy.side.module(input_ids=whole).logits[0].log_softmax(-1)
        for k, token in enumerate(sequence.sampled):
            (-coefficient_N[at] * lp_LV[len(sequence.prompt) + k - 1, token]).backward(retain_graph=True)
            at += 1
    return policy.flat_gradient()


def apart(a_G: torch.Tensor, b_G: torch.Tensor) -> float:
    return float((a_G - b_G).norm() / b_G.norm())


@pytest.mark.parametrize("layout", ["packed", "padded", "single"])
def test_the_gradient_is_that_of_the_loss_written_out(load: Callable[..., Policy], layout: str) -> None:
    policy = load(layout=layout)
    coefficient_N = torch.linspace(-1, 1, 8)
    loss = policy.gradient(BATCH, coefficient_N)
    found_G = policy.flat_gradient()
    by_hand_G = written_out(policy, BATCH, coefficient_N)
    assert apart(found_G, by_hand_G) < 1e-5
    assert loss == pytest.approx(-float((policy.recompute(BATCH) * coefficient_N).sum()), rel=1e-5)
    assert apart(found_G, written_out(policy, BATCH, coefficient_N.flip(0))) > 0.1, "the control"


def test_score_centering_adds_the_head_of_the_engine(load: Callable[..., Policy]) -> None:
    """Its gradient minus that of truncated weights is the coefficient times the gradient of log p on the head."""
    settings = SETTINGS.model_copy(update={"correction": "centering", "cap": 1.1})
    policy = load()
    trainer_N = policy.recompute(BATCH)
    batch = RolloutData(BATCH.sequences, trainer_N - 0.2, BATCH.valid_N)
    at_rows = [row for s in BATCH.sequences for row in (s,) * len(s.sampled)]
    best = [
        policy.side.module(input_ids=torch.tensor([s.prompt])).logits[0, -1].log_softmax(-1).topk(3) for s in at_rows
    ]
    head = Head(torch.stack([b.indices for b in best]), torch.stack([b.values.detach() - 0.5 for b in best]))
    sampled = Sampled(batch, torch.tensor([1.0, 0.0, 0.5, 0.0]), head)
    learn(policy, sampled, trainer_N, settings)
    centred_G = policy.flat_gradient()
    learn(policy, sampled, trainer_N, settings.model_copy(update={"correction": "tis"}))
    added_G = centred_G - policy.flat_gradient()
    policy.side.module.zero_grad()
    advantage_N = torch.tensor([0.5] * 2 + [-0.5] * 3 + [0.25] + [-0.25] * 2)
    at = 0
    for sequence in batch.sequences:
        lp_LV = policy.side.module(input_ids=torch.tensor([sequence.tokens])).logits[0].log_softmax(-1)
        for position in sequence.scored:
            lp_K = lp_LV[position, head.id_NK[at]]
            p_K, q_K = lp_K.detach().exp(), head.logprob_NK[at].exp()
            rho = (1 - q_K.sum()) / (1 - p_K.sum())
            constant_K = q_K * (p_K / q_K).clamp(max=1.1) - rho * (1 / rho).clamp(max=1.1) * p_K
            (advantage_N[at] / 8 * (constant_K * lp_K).sum()).backward(retain_graph=True)
            at += 1
    assert apart(added_G, policy.flat_gradient()) < 1e-4
    assert float(added_G.norm()) > 1e-3


def test_an_update_moves_the_master_weights_and_rounds_them_into_the_model(load: Callable[..., Policy]) -> None:
    policy = load("bfloat16")
    before = [own.clone() for own in policy.master]
    policy.gradient(BATCH, torch.ones(8))
    norm = policy.update()
    assert norm > 0
    moved = [not torch.equal(a, b) for a, b in zip(before, policy.master, strict=True)]
    assert sum(moved) > len(moved) / 2
    for own, parameter in zip(policy.master, policy.parameters, strict=True):
        assert torch.equal(own.bfloat16(), parameter)
    assert all(parameter.grad is None for parameter in policy.parameters)


def test_a_long_gradient_is_clipped_and_its_own_norm_told(load: Callable[..., Policy]) -> None:
    wide, narrow = load(), load(settings=SETTINGS.model_copy(update={"clip": 1e-4}))
    for policy in (wide, narrow):
        policy.optimizer = torch.optim.SGD(policy.master, lr=1.0)
        policy.gradient(BATCH, torch.ones(8))
    start_ = [own.clone() for own in narrow.master]
    assert wide.update() == narrow.update() > 1e-4
    step = torch.cat([(a - b).flatten() for a, b in zip(start_, narrow.master, strict=True)])
    assert float(step.norm()) == pytest.approx(1e-4, rel=1e-2)


def test_a_restored_policy_goes_on_bit_for_bit(load: Callable[..., Policy]) -> None:
    policy = load("bfloat16")

    def step() -> str:
        policy.gradient(BATCH, torch.linspace(-1, 1, 8))
        policy.update()
        return policy.digest()

    step()
    state = copy.deepcopy(policy.state())
    later = [step() for _ in range(3)]
    assert len(set(later)) == 3
    fresh = load("bfloat16")
    fresh.restore(state)
    policy = fresh
    assert [step() for _ in range(3)] == later
    state["optimizer"]["state"].clear()
    policy.restore(state)
    assert step() != later[0], "the control: without the optimizer's state it goes elsewhere"


def test_the_digest_sees_one_bit_of_one_weight(load: Callable[..., Policy]) -> None:
    policy = load("bfloat16")
    before = policy.digest()
    with torch.no_grad():
        policy.parameters[3].view(torch.int16).flatten()[5] ^= 1
    assert policy.digest() != before


def test_supervised_updates_lower_the_loss_on_right_answers(load: Callable[..., Policy]) -> None:
    policy = load(settings=SETTINGS.model_copy(update={"rate": 3e-3}))
    task = Sort(1, 2, end=1)
    losses = [start.supervised_step(policy, task, 0, step) for step in range(4)]
    assert losses[-1] < losses[0] * 0.8


def test_a_rollout_beyond_the_trainers_limit_is_refused(load: Callable[..., Policy]) -> None:
    policy = load()
    long = data(([2] * 120, [3] * 9))
    for call in (policy.recompute, lambda batch: policy.gradient(batch, torch.ones(9))):
        with pytest.raises(UserError, match="129 tokens, the trainer side's model takes 128"):
            call(long)
    with pytest.raises(UserError, match="token id 256, the trainer side's vocabulary has 256"):
        policy.recompute(data(([2], [256])))


def test_a_model_without_room_for_the_task_is_refused(load: Callable[..., Policy]) -> None:
    config = load().side.module.config
    assert start.task_of(Rl(), config).end == 1
    with pytest.raises(UserError, match="needs 1 <= fewest <= most"):
        start.task_of(Rl(digits=(5, 4)), config)
    other = copy.deepcopy(config)
    other.eos_token_id = 5
    with pytest.raises(UserError, match="another one for the end"):
        start.task_of(Rl(), other)


def test_weights_that_are_not_finite_any_more_are_named_with_the_update(load: Callable[..., Policy]) -> None:
    policy = load("bfloat16")
    policy.gradient(BATCH, torch.ones(8))
    policy.master[0].fill_(3.4e38)  # a float32, beyond every bfloat16
    with pytest.raises(UserError, match=r"the weights: not finite after update 3: 1 of \d+ hold NaN") as caught:
        policy.update("update 3")
    assert "lower [rl] rate (here 0.001)" in caught.value.next_step


def test_a_gradient_that_is_not_finite_updates_nothing(load: Callable[..., Policy]) -> None:
    policy = load()
    policy.gradient(BATCH, torch.ones(8))
    before = policy.digest()
    first = policy.parameters[0].grad
    assert first is not None
    first[0, 0] = torch.nan
    with pytest.raises(UserError, match=r"the gradient of supervised update 1: not finite \(its norm is nan\)") as said:
        policy.update("supervised update 1", "warmup_rate")
    assert "lower [rl] warmup_rate (here 0.001)" in said.value.next_step
    assert policy.digest() == before
