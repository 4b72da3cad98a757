"""A capture over its budget is refused before the memory is taken, with its size, and leaves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from samebits.tools.capture.recorder import Recorder
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.sites import CapturePlan

if TYPE_CHECKING:
    from conftest import Runs


def bytes_of(runs: Runs, plan: CapturePlan) -> int:
    with Recorder(runs.model, runs, plan) as recorder:
        runs.decode([0, 1, 2, 3])
    return recorder.sink.store.held


def test_a_run_within_its_budget_is_recorded_and_one_below_is_refused(runs: Runs) -> None:
    need = bytes_of(runs, CapturePlan(store="tensors"))
    assert bytes_of(runs, CapturePlan(store="tensors", budget_bytes=need)) == need
    with pytest.raises(UserError, match="MiB") as caught:
        bytes_of(runs, CapturePlan(store="tensors", budget_bytes=need - 1))
    assert "budget" in str(caught.value)


def test_digests_need_less_than_tensors(runs: Runs) -> None:
    assert bytes_of(runs, CapturePlan()) < bytes_of(runs, CapturePlan(store="tensors"))


def test_the_first_pass_tells_the_size_of_the_whole_run(runs: Runs) -> None:
    """23 token rows in all; the first pass computes 8 of them."""
    need = bytes_of(runs, CapturePlan(store="tensors"))
    recorder = Recorder(runs.model, runs, CapturePlan(store="tensors", budget_bytes=int(need * 0.9)), expected_rows=23)
    with pytest.raises(UserError, match="8 token rows of the first pass, 23 in all"), recorder:
        runs.decode([0, 1, 2, 3])
    assert recorder.counts.passes == 1
    assert not recorder.sink.store.entries
    assert recorder.sink.store.held == 0


def test_a_run_of_one_pass_is_measured_too(runs: Runs) -> None:
    recorder = Recorder(runs.model, runs, CapturePlan(store="tensors", budget_bytes=30_000), expected_rows=10**6)
    with pytest.raises(UserError, match="of the first pass"), recorder:
        runs.flat([(0, 0, 5)])


def test_weights_are_digested_once_and_caches_not_at_all(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from samebits.tools.capture import sink as module
    from samebits.tools.capture import store

    seen: list[int] = []
    whole = store.digest_whole
    monkeypatch.setattr(store, "digest_whole", lambda t: (seen.append(t.data_ptr()), whole(t))[1])
    monkeypatch.setattr(module, "WHOLE_LIMIT", 16)
    with Recorder(runs.model, runs, CapturePlan(level="operator", modules=("layers.0.up", "layers.0.mix"))) as recorder:
        runs.decode([0, 1, 2, 3])
    assert seen.count(runs.model.layers[0].up.weight.data_ptr()) == 1
    manifest = recorder.write(tmp_path / "capture")
    assert any("without token rows (a cache?)" in line for line in manifest.untapped)
