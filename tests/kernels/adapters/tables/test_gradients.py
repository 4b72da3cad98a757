"""The gradient behind vLLM's operators is as good as stock bf16's, against the float32 gradient.

MoE: bf16 and float32 route some rows to other experts, so the float32 model replays the bf16 routing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from samebits.kernels.adapters.tables.operators import Operator
from samebits.kernels.adapters.transformers.engine import patch
from samebits.tools.sides.protocol import Sequence
from samebits.tools.sides.transformers.tiny import write_tiny

pytestmark = pytest.mark.vllm
WORSE = 1e-3
"""Cosine a parameter may lose against stock bf16."""


def sequences(seed: int) -> list[Sequence]:
    generator = torch.Generator().manual_seed(seed)
    lengths = (3, 17, 64, 130, 200)
    return [
        Sequence(*(torch.randint(2, 1000, (n,), generator=generator).tolist() for n in (length, 16)))
        for length in lengths
    ]


def gradients(model: Any, packed: Any, table: Any) -> dict[str, torch.Tensor]:
    patched = patch(model, table)
    batch = packed.of(sequences(7))
    advantage_M = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(8))
    (-(batch.score(patched) * advantage_M).mean()).backward()
    return {name: parameter.grad.float() for name, parameter in model.named_parameters()}


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.flatten().double(), b.flatten().double(), 0))


def lost(
    ours: dict[str, torch.Tensor], stock: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]
) -> dict[str, float]:
    assert ours.keys() == stock.keys() == exact.keys()
    return {name: cosine(stock[name], exact[name]) - cosine(ours[name], exact[name]) for name in exact}


class Routing:
    """A router that notes the experts of every layer, or replays them."""

    def __init__(self) -> None:
        self.ids: list[torch.Tensor] = []

    def record(self, router: Callable[..., Any]) -> Operator:
        def run(*args: Any) -> Any:
            weight_TR, id_TR = router(*args)
            self.ids.append(id_TR)
            return weight_TR, id_TR

        return Operator("router", "recorded", run)

    def replay(self) -> Operator:
        left: Iterator[torch.Tensor] = iter(self.ids)

        def run(logits_TX: torch.Tensor, top_k: int, renormalize: bool) -> Any:
            id_TR = next(left)
            assert renormalize
            return torch.softmax(logits_TX.gather(1, id_TR.long()), -1), id_TR

        return Operator("router", "replayed", run)


def load(folder: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_tied", "llama"])
def test_no_parameter_loses_gradient_against_stock(family: Any, packed: Any, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / family, family)
    exact = gradients(load(folder, torch.float32), packed, "stock")
    stock = gradients(load(folder, torch.bfloat16), packed, "stock")
    ours = gradients(load(folder, torch.bfloat16), packed, "vllm")
    assert max(lost(ours, stock, exact).values()) <= WORSE


def test_no_parameter_of_an_moe_loses_gradient_with_its_routing_replayed(packed: Any, tmp_path: Path) -> None:
    from vllm.model_executor.layers.fused_moe.router.cpu_router import _softmax_topk

    from samebits.kernels.adapters.tables import stock as plain

    folder = write_tiny(tmp_path / "moe", "qwen3_moe")
    error: dict[str, dict[str, float]] = {}
    for table, router in (("vllm", _softmax_topk), ("stock", plain.router)):
        routing = Routing()
        ours = gradients(load(folder, torch.bfloat16), packed, {"*": table, "router": routing.record(router)})
        exact = gradients(load(folder, torch.float32), packed, {"*": "stock", "router": routing.replay()})
        error[table] = {name: 1 - cosine(ours[name], exact[name]) for name in exact}
    assert max(error["vllm"][name] - error["stock"][name] for name in error["stock"]) <= WORSE


def test_the_gradient_in_float32_is_stocks(packed: Any, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "qwen3", "qwen3", dtype="float32")
    exact = gradients(load(folder, torch.float32), packed, "stock")
    ours = gradients(load(folder, torch.float32), packed, "vllm")
    assert all(cosine(ours[name], exact[name]) > 1 - 1e-6 for name in exact)


def test_a_wrong_backward_is_seen(packed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from samebits.kernels.adapters.tables import backward

    monkeypatch.setattr(backward, "rotary", lambda grad, table_PE, pack: grad)
    folder = write_tiny(tmp_path / "qwen3", "qwen3")
    exact = gradients(load(folder, torch.float32), packed, "stock")
    stock = gradients(load(folder, torch.bfloat16), packed, "stock")
    assert max(lost(gradients(load(folder, torch.bfloat16), packed, "vllm"), stock, exact).values()) > WORSE
