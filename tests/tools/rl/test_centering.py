"""Score Centering against expectations summed over a whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from samebits.tools.rl.centering import coefficients, truncated

V = 12
Weight = Callable[[torch.Tensor], torch.Tensor]
FUNCTIONS: dict[str, Weight] = {
    "one": torch.ones_like,
    "truncated": truncated(1.3),
    "band": lambda r: torch.where((r > 0.7) & (r < 1.4), r, 0.0),
    "ratio": lambda r: r,
}


def distributions(spread: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of p [V] and log q [V], float64."""
    generator = torch.Generator().manual_seed(3)
    logits_V = torch.randn(V, generator=generator, dtype=torch.float64)
    noise_V = torch.randn(V, generator=generator, dtype=torch.float64)
    return logits_V, (logits_V + spread * noise_V).log_softmax(-1)


def gradient(coefficient_V: torch.Tensor, logits_V: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """d/dlogits of sum(coefficient * log p) over these ids."""
    leaf_V = logits_V.clone().requires_grad_()
    (coefficient_V * leaf_V.log_softmax(-1)[ids]).sum().backward()
    assert leaf_V.grad is not None
    return leaf_V.grad


@pytest.mark.parametrize("name", FUNCTIONS)
def test_with_the_whole_vocabulary_it_is_the_expectation_of_the_weighted_score(name: str) -> None:
    logits_V, q_V = distributions()
    p_V, ids = logits_V.log_softmax(-1), torch.arange(V)
    weight = FUNCTIONS[name]
    expectation_V = gradient(q_V.exp() * weight((p_V - q_V).exp()), logits_V, ids)
    centred_V = gradient(coefficients(q_V[None], p_V[None], weight)[0], logits_V, ids)
    assert torch.allclose(centred_V, expectation_V, atol=1e-12)
    if name == "ratio":
        assert float(expectation_V.abs().max()) < 1e-12, "with f = r there is nothing to centre"
    else:
        assert float(expectation_V.abs().max()) > 1e-3, "the control: here there is"


def test_the_tail_is_modelled_by_one_ratio() -> None:
    """Where the tail of q is that of p times a constant, the model is exact; elsewhere it is not."""
    logits_V, q_V = distributions()
    p_V, head = logits_V.log_softmax(-1), torch.arange(4)
    tail = torch.arange(4, V)
    shaped_V = q_V.clone()
    left = 1 - q_V[:4].exp().sum()
    shaped_V[tail] = (p_V[tail].exp() / p_V[tail].exp().sum() * left).log()
    weight = FUNCTIONS["truncated"]
    for given_V, exact in ((shaped_V, True), (q_V, False)):
        whole_V = gradient(given_V.exp() * weight((p_V - given_V).exp()), logits_V, torch.arange(V))
        few_V = gradient(coefficients(given_V[None, :4], p_V[None, :4], weight)[0], logits_V, head)
        assert torch.allclose(few_V, whole_V, atol=1e-12) == exact


def test_the_formula_by_hand() -> None:
    q, p, cap = torch.tensor([[0.5, 0.2]]), torch.tensor([[0.4, 0.4]]), 1.5
    # rho = 0.3 / 0.2 = 1.5, alpha = 1.5 * min(1 / 1.5, 1.5) = 1; f(0.8) = 0.8, f(2) = 1.5.
    by_hand = [[0.5 * 0.8 - 0.4, 0.2 * 1.5 - 0.4]]
    found = coefficients(q.log(), p.log(), truncated(cap))
    assert torch.allclose(found, torch.tensor(by_hand), atol=1e-6)


def test_with_equal_bits_every_coefficient_is_zero_and_one_ulp_shows() -> None:
    lp_NK = torch.log_softmax(torch.randn(6, V, generator=torch.Generator().manual_seed(0)), -1)[:, :5]
    assert not coefficients(lp_NK, lp_NK.clone(), truncated(2.0)).any()
    moved_NK = (lp_NK.view(torch.int32) - 1).view(torch.float32)
    assert coefficients(lp_NK, moved_NK, truncated(2.0)).any()


def test_a_distribution_of_one_token_gives_no_gradient() -> None:
    logits_V = torch.full((V,), -60.0, dtype=torch.float64)
    logits_V[2] = 0.0
    p_V = logits_V.log_softmax(-1)
    ids = torch.tensor([2])
    found_V = gradient(coefficients(p_V[None, ids] - 1e-9, p_V[None, ids], truncated(2.0))[0], logits_V, ids)
    assert float(found_V.abs().max()) < 1e-6
