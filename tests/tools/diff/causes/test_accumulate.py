"""Written-out orders and exponentials mean what PyTorch means, with other bits."""

from __future__ import annotations

import pytest
import torch

from samebits.tools.diff.causes.accumulate import cubic_exp, exponential, fma, last_sum, product, quintic_exp
from samebits.tools.diff.causes.observation import same_bits


def test_the_exponentials_are_close_to_exp_and_zero_far_below() -> None:
    x = -torch.logspace(-3, 1.9, 4001)
    exact = x.double().exp()
    for function, bound in ((cubic_exp, 2e-4), (quintic_exp, 1e-6)):
        assert float(((function(x).double() - exact) / exact).abs().max()) < bound
        assert function(torch.tensor([-200.0, -torch.inf])).tolist() == [0.0, 0.0]


def test_the_tail_of_a_cubic_exponential_is_the_plain_one() -> None:
    x = -torch.rand(3, 21, generator=torch.Generator().manual_seed(0))
    out = exponential(x, "cubic")
    assert same_bits(out[:, 16:].contiguous(), x[:, 16:].exp())
    assert not same_bits(out[:, :16].contiguous(), x[:, :16].exp())


def test_a_fused_multiply_add_rounds_once() -> None:
    a = torch.tensor([1 + 2.0**-12])
    assert fma(a, a, torch.tensor([-1.0])).item() == 2.0**-11 + 2.0**-24
    assert (a * a - 1).item() == 2.0**-11


@pytest.mark.parametrize("how", ["native", "ascending", "pairs", "tiles"])
@pytest.mark.parametrize("size", [1, 31, 70])
def test_every_order_of_a_product_is_exact_on_integers(how: str, size: int) -> None:
    make = torch.Generator().manual_seed(size)
    a, b = (torch.randint(-8, 9, shape, generator=make).float() for shape in ((2, 3, size), (2, size, 4)))
    assert torch.equal(product(a, b, how), torch.einsum("bmk,bkn->bmn", a.double(), b.double()).float())


def test_orders_of_a_product_differ_in_bits() -> None:
    make = torch.Generator().manual_seed(1)
    a, b = torch.randn(1, 8, 96, generator=make), torch.randn(1, 96, 64, generator=make)
    outs = [product(a, b, how) for how in ("ascending", "pairs", "tiles")]
    assert not any(same_bits(outs[i], outs[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("size", [5, 16, 50])
def test_sums_are_exact_on_integers(size: int) -> None:
    x = torch.arange(2 * size).float().view(2, size)
    for how in ("native", "lanes"):
        assert last_sum(x, how)[:, 0].tolist() == x.sum(-1).tolist()
