"""What is kept of a layer's cache between passes: never that of another tensor or of other memory."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.vllm.attention import LAYERS, layer_of, split


def cache_of(pages: int = 3) -> torch.Tensor:
    """[P, G, S, 2 * E]."""
    return torch.zeros(pages, 16, 2, 128).transpose(1, 2)


def test_keys_and_values_of_a_cache_are_made_once_and_are_its_memory() -> None:
    cache = cache_of()
    layer = layer_of(cache, 64)
    assert layer_of(cache, 64) is layer
    for kept, made in zip((layer.keys, layer.values), split(cache, 64), strict=True):
        assert (kept.data_ptr(), kept.shape, kept.stride()) == (made.data_ptr(), made.shape, made.stride())


def test_other_memory_of_the_same_tensor_and_another_head_size_are_seen() -> None:
    cache, other = cache_of(), cache_of(5)
    before = layer_of(cache, 64)
    cache.set_(other)  # type: ignore[call-overload]
    after = layer_of(cache, 64)
    assert after.keys.data_ptr() == other.data_ptr() != before.keys.data_ptr()
    assert after.keys.shape[0] == 5
    with pytest.raises(PatchError, match="KV cache"):
        layer_of(cache, 128)


def test_nothing_is_kept_of_a_cache_that_is_gone() -> None:
    cache = cache_of()
    keys, key = weakref.ref(layer_of(cache, 64).keys), id(cache)
    assert key in LAYERS
    del cache
    gc.collect()
    assert key not in LAYERS
    assert keys() is None


def test_another_tensor_with_the_id_of_one_that_is_gone_is_not_taken_for_it() -> None:
    old, new = cache_of(), cache_of()
    kept = layer_of(old, 64)
    LAYERS[id(new)] = kept
    assert layer_of(new, 64).keys.data_ptr() == new.data_ptr()
    LAYERS.pop(id(new))
