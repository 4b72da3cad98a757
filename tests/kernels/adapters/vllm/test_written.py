"""Keys and values written by samebits::normed_rotary_cache, by the forward context alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from samebits.kernels.ops.normed_rotary.inputs import draw
from samebits.kernels.ops.normed_rotary.op import normed_rotary
from samebits.kernels.ops.ran import counts

pytestmark = pytest.mark.vllm
NAME = "model.layers.0.self_attn.attn"
SHAPE = {"heads": 4, "kv_heads": 2, "head": 64, "rotary": 64}


class Told(Exception):
    """vLLM's own write was called."""


class Implementation:
    """Stands for a backend's: notes what attention was given."""

    head_size = SHAPE["head"]

    def __init__(self) -> None:
        self.given: list[torch.Tensor] = []

    def do_kv_cache_update(self, *given: Any) -> None:
        raise Told

    def forward(self, layer: Any, query: torch.Tensor, *rest: Any, output: torch.Tensor, **others: Any) -> torch.Tensor:
        self.given += [query, *rest[:2]]
        return output.copy_(query)


def context(layer: Any, slots: torch.Tensor | None) -> Any:
    """A forward context as both runners make it, of one layer."""
    mapping = {} if slots is None else {NAME: slots}
    return SimpleNamespace(attn_metadata=None, no_compile_layers={NAME: layer}, slot_mapping=mapping)


def called(slots: torch.Tensor | None) -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    """(results, those of normed_rotary, v, the cache afterwards) of 5 tokens and 3 pages of 4 slots."""
    from vllm.forward_context import override_forward_context
    from vllm.utils.torch_utils import _encode_layer_name

    from samebits.kernels.adapters.vllm.written import normed_rotary_cache

    args = draw(SHAPE, 5, torch.bfloat16, torch.device("cpu"), 3, False)
    v = torch.randn(5, SHAPE["kv_heads"], SHAPE["head"]).bfloat16()
    cache = torch.full((3, SHAPE["kv_heads"], 4, 2 * SHAPE["head"]), 7.0).bfloat16()
    layer = SimpleNamespace(kv_cache=cache if slots is not None else torch.tensor([]), impl=Implementation())
    rest = [args[name] for name in ("q_weight", "k_weight", "eps", "positions", "cache")]
    with override_forward_context(context(layer, slots)):
        found = normed_rotary_cache(args["q"], args["k"], v, *rest, _encode_layer_name(NAME))
    return found, normed_rotary(**args), v, cache


@pytest.mark.parametrize("slots", [[9, -1, 0, 4, -1], [11, 2, 3]])
def test_keys_and_values_of_a_pass_are_in_their_slots_and_padding_is_written_nowhere(slots: list[int]) -> None:
    found, plain, v, cache = called(torch.tensor(slots))
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    rest = torch.full_like(cache, 7.0)
    for token, slot in enumerate(slots):
        if slot >= 0:
            rest[slot // 4, :, slot % 4] = torch.cat([plain[1][token], v[token]], -1)
    assert torch.equal(cache, rest)


def test_a_pass_before_there_is_a_cache_computes_the_same_and_writes_nothing() -> None:
    before = counts()
    found, plain, _, cache = called(None)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    assert bool((cache == 7).all())
    assert counts().get("normed_rotary into pages", 0) == before.get("normed_rotary into pages", 0)


def test_attention_leaves_out_vllms_write_which_vllms_own_layer_calls() -> None:
    from vllm.forward_context import override_forward_context
    from vllm.model_executor.layers.attention.attention import Attention

    from samebits.kernels.adapters.vllm.written import SamebitsWrittenAttention

    layer: Any = Attention.__new__(Attention)
    nn.Module.__init__(layer)
    held = {"layer_name": NAME, "num_heads": 4, "num_kv_heads": 2, "head_size": 64, "head_size_v": 64}
    own = {"query_quant": None, "calculate_kv_scales": False, "use_direct_call": False, "impl": Implementation()}
    sharing = {"kv_sharing_target_layer_name": None, "kv_cache": torch.zeros(1)}
    backend = SimpleNamespace(forward_includes_kv_cache_update=False)
    for name, value in (held | own | sharing | {"attn_backend": backend}).items():
        setattr(layer, name, value)
    q, k, v = (torch.randn(5, heads * 64).bfloat16() for heads in (4, 2, 2))
    with override_forward_context(context(layer, torch.arange(5))):
        with pytest.raises(Told):
            layer(q, k, v)
        layer.__class__ = SamebitsWrittenAttention
        found = layer(q, k, v)
    assert torch.equal(found, q)
    assert [tuple(given.shape) for given in layer.impl.given] == [(5, 4, 64), (5, 2, 64), (5, 2, 64)]
