"""The same token has the same digest however it was computed, and every row carries its sequence and position."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from samebits.tools.align.taps import Taps
from samebits.tools.capture import store
from samebits.tools.capture.places import Place
from samebits.tools.capture.recorder import Recorder
from samebits.tools.diff import digest
from samebits.tools.diff.bits import digest_rows
from samebits.tools.schema.artifacts.capture import CaptureManifest
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.sites import CapturePlan, Parts

if TYPE_CHECKING:
    from conftest import Runs

WAYS: dict[str, Callable[[Any], None]] = {
    "single": lambda runs: [runs.padded([s]) for s in range(4)],  # type: ignore[return-value]
    "padded": lambda runs: (runs.padded([0, 1, 2]), runs.padded([3])),  # type: ignore[return-value]
    "packed": lambda runs: runs.flat([(s, 0, len(runs.sequences[s])) for s in (2, 0, 3, 1)], wrapped=True, head=False),
    "engine": lambda runs: runs.flat([(s, 0, len(runs.sequences[s])) for s in range(4)], head=False),
    "decode": lambda runs: runs.decode([3, 1, 0, 2]),
    "chunks": lambda runs: (
        runs.flat([(1, 0, 4), (0, 0, 2)], head=False),
        runs.flat([(0, 2, 5), (2, 0, 1), (1, 4, 9)], head=False),
        runs.flat([(3, 0, 6), (2, 1, 3)], head=False),
    ),  # type: ignore[return-value]
}


def record(runs: Runs, way: str, folder: Path, plan: CapturePlan | None = None) -> Taps:
    for layer in runs.model.layers:
        layer.mix.cache.clear()
    with Recorder(runs.model, runs, plan or CapturePlan(store="tensors")) as recorder:
        WAYS[way](runs)
    recorder.write(folder / way, lengths=runs.lengths)
    return Taps.open(folder / way)


def digests(taps: Taps) -> dict[str, str]:
    return {str(tap.site): tap.digest for tap in taps.manifest.taps if tap.rowset is not None}


@pytest.mark.parametrize("way", [way for way in WAYS if way != "single"])
def test_every_way_of_computing_gives_the_same_taps(runs: Runs, tmp_path: Path, way: str) -> None:
    single, other = record(runs, "single", tmp_path), record(runs, way, tmp_path)
    assert digests(single) == digests(other)
    assert len(digests(single)) == 2 + 2 + 2 * (2 + 2 + 2 + 2 + 2 + 2) + 2
    for taps in (single, other):
        manifest = taps.manifest
        assert (manifest.tokens, manifest.missing, manifest.recomputed) == (23, 0, 0)
        for site in digests(single):
            assert torch.equal(taps.keys(site), single.keys(site))
            assert torch.equal(taps.value(site), single.value(site))
            assert torch.equal(digest_rows(taps.value(site)), taps.digests(site))


def test_a_wrong_row_map_is_seen(runs: Runs, tmp_path: Path) -> None:
    """Negative control of the above: two rows swapped in the map alone."""
    right = digests(record(runs, "engine", tmp_path / "right"))
    current = runs.current

    def lying() -> Any:
        rows = current()
        position = rows.position_T.clone()
        position[[0, 1]] = position[[1, 0]]
        return type(rows)(rows.sequence_T, position, rows.batch, rows.head_R)

    runs.current = lying  # type: ignore[method-assign]
    wrong = digests(record(runs, "engine", tmp_path / "wrong"))
    assert right.keys() == wrong.keys()
    assert all(right[site] != wrong[site] for site in right)


def test_digest_only_and_stored_captures_agree(runs: Runs, tmp_path: Path) -> None:
    stored = record(runs, "decode", tmp_path / "stored")
    only = record(runs, "decode", tmp_path / "only", CapturePlan())
    assert digests(stored) == digests(only)
    assert not any(tap.stored for tap in only.manifest.taps)


def test_values_are_kept_at_the_named_sites_alone(runs: Runs, tmp_path: Path) -> None:
    with Recorder(runs.model, runs, CapturePlan(store="tensors")) as recorder:
        runs.flat([(0, 0, 5), (1, 0, 9)])
    recorder.write(tmp_path / "all")
    whole = Taps.open(tmp_path / "all")
    named = whole.rowed[1].site
    with Recorder(runs.model, runs, CapturePlan(store="tensors", values=(named,))) as recorder:
        runs.flat([(0, 0, 5), (1, 0, 9)])
    recorder.write(tmp_path / "some")
    some = Taps.open(tmp_path / "some")
    assert [tap.digest for tap in some.manifest.taps] == [tap.digest for tap in whole.manifest.taps]
    assert [tap.site for tap in some.manifest.taps if tap.stored] == [named]
    assert torch.equal(some.value(str(named)), whole.value(str(named)))


def test_one_changed_token_changes_its_row_and_what_depends_on_it(runs: Runs, tmp_path: Path) -> None:
    before = record(runs, "engine", tmp_path / "before")
    runs.sequences[1][4] = (runs.sequences[1][4] + 1) % 32
    after = record(runs, "decode", tmp_path / "after")
    changed = (before.digests("embed:out0") != after.digests("embed:out0")).any(dim=1)
    assert before.keys("embed:out0")[changed].tolist() == [(1 << 32) | 4]
    mixed = (before.digests("layers.0.mix:out0") != after.digests("layers.0.mix:out0")).any(dim=1)
    assert before.keys("embed:out0")[mixed].tolist() == [(1 << 32) | p for p in range(4, 9)]


def test_inputs_and_outputs_are_copied_when_they_are_taken(runs: Runs, tmp_path: Path) -> None:
    taps = record(runs, "engine", tmp_path)
    weight = runs.model.layers[0].norm.weight.detach()
    came, went = taps.value("layers.0.norm:in0"), taps.value("layers.0.norm:out0")
    assert torch.equal(came, taps.value("layers.0:in0"))
    assert torch.equal(went, came + weight)
    assert not torch.equal(went, came)


def values_that_are_not_their_digest(runs: Runs) -> set[str]:
    with Recorder(runs.model, runs, CapturePlan(store="tensors")) as recorder:
        WAYS["engine"](runs)
    out = set()
    for entry in recorder.sink.store.entries.values():
        for chunk in entry.chunks:
            assert chunk.value is not None
            if not torch.equal(digest_rows(chunk.value), chunk.digests):
                out.add(str(entry.site))
    return out


def test_a_reference_in_place_of_a_copy_is_caught(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control (the classic capture fault): an alias shows what a later in-place write left there."""
    assert values_that_are_not_their_digest(runs) == set()
    monkeypatch.setattr(store, "private", lambda rows: rows.detach())
    assert values_that_are_not_their_digest(runs) == {"layers.0.norm:in0", "layers.1.norm:in0"}


def test_a_digest_taken_too_late_is_caught(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: rows kept by reference and digested at the end of the run."""
    sound = digests(record(runs, "engine", tmp_path / "sound", CapturePlan()))
    monkeypatch.setattr(store, "lane_sums", lambda rows: rows)
    monkeypatch.setattr(store, "fold", lambda rows, length: digest_rows(rows))
    faulty = digests(record(runs, "engine", tmp_path / "faulty", CapturePlan()))
    assert {site for site in sound if sound[site] != faulty[site]} == {"layers.0.norm:in0", "layers.1.norm:in0"}


def test_a_shared_module_has_one_site_per_call(runs: Runs, tmp_path: Path) -> None:
    taps = record(runs, "decode", tmp_path)
    assert {"layers.0.shift:in0", "layers.0.shift@1:in0"} <= set(digests(taps))
    assert digests(taps)["layers.0.shift:out0"] != digests(taps)["layers.0.shift@1:out0"]


def test_order_is_time_outputs_of_a_container_come_last(runs: Runs, tmp_path: Path) -> None:
    taps = record(runs, "engine", tmp_path)
    order = [str(tap.site) for tap in taps.rowed]
    assert order[0] == ":in0"
    assert order[-1] == ":out0"
    assert (
        order.index("layers.0:in0")
        < order.index("layers.0.up:in0")
        < order.index("layers.0.up:out0")
        < order.index("layers.0:out0")
    )


def test_only_the_chosen_sequences_and_modules_are_kept(runs: Runs, tmp_path: Path) -> None:
    plan = CapturePlan(modules=("layers.1.up", "layers"), sequences=(1, 2))
    taps = record(runs, "decode", tmp_path, plan)
    assert set(digests(taps)) == {"layers.1.up:in0", "layers.1.up:out0"}
    assert (taps.keys("layers.1.up:out0") >> 32).unique().tolist() == [1, 2]
    assert (taps.manifest.tokens, taps.manifest.missing) == (12, 0)
    assert [line.split(":")[0] for line in taps.manifest.untapped] == ["layers"]


def test_head_rows_have_their_own_row_set(runs: Runs, tmp_path: Path) -> None:
    with Recorder(runs.model, runs, CapturePlan(store="tensors")) as recorder:
        runs.flat([(1, 0, 9), (0, 0, 3)])
        runs.flat([(0, 3, 5), (2, 0, 3)])
    recorder.write(tmp_path / "capture")
    taps = Taps.open(tmp_path / "capture")
    keys = taps.keys("head:out0").tolist()
    assert keys == [2, 4, (1 << 32) | 8, (2 << 32) | 2]
    for key, row in zip(keys, taps.value("head:out0"), strict=True):
        assert torch.equal(row, runs.logits[key >> 32, key & 0xFFFFFFFF])


def test_rows_computed_again_are_compared(runs: Runs, tmp_path: Path) -> None:
    def twice(folder: Path, disturb: bool) -> CaptureManifest:
        with Recorder(runs.model, runs, CapturePlan()) as recorder:
            runs.flat([(0, 0, 3)], head=False)
            if disturb:
                with torch.no_grad():
                    runs.model.layers[1].up.weight.add_(1)
            runs.flat([(0, 0, 5)], head=False)
        return recorder.write(folder, lengths=runs.lengths[:1])

    same, other = twice(tmp_path / "same", False), twice(tmp_path / "other", True)
    assert (same.tokens, same.recomputed, same.recomputed_differing, same.missing) == (5, 3, (), 0)
    assert other.recomputed == 3
    assert other.recomputed_differing[0] == "layers.1.up:out0"


def test_rows_never_computed_are_counted(runs: Runs, tmp_path: Path) -> None:
    runs.flat([(0, 0, 2), (1, 0, 4)], head=False)
    with Recorder(runs.model, runs, CapturePlan()) as recorder:
        runs.flat([(0, 2, 5), (1, 4, 7)], head=False)
    assert recorder.write(tmp_path / "told", lengths=[5, 9]).missing == 2 + 4 + 2
    with Recorder(runs.model, runs, CapturePlan()) as recorder:
        runs.flat([(0, 2, 5), (1, 4, 7)], head=False)
    assert recorder.write(tmp_path / "holes").missing == 2 + 4


def test_columns_of_a_merged_output_can_have_taps_of_their_own(runs: Runs, tmp_path: Path) -> None:
    taps = record(
        runs, "padded", tmp_path, CapturePlan(store="tensors", parts=(Parts(module="layers.0.up", bounds=(0, 5, 16)),))
    )
    whole = taps.value("layers.0.up:out0")
    assert torch.equal(taps.value("layers.0.up:out0[0:5]"), whole[:, :5])
    assert torch.equal(taps.digests("layers.0.up:out0[5:16]"), digest_rows(whole[:, 5:]))


def test_passes_that_the_side_announces(runs: Runs, tmp_path: Path) -> None:
    """A step outside of the root's call belongs to the announced pass."""
    with Recorder(runs.model, runs, CapturePlan(store="tensors")) as recorder:
        for part in ([(0, 0, 5)], [(1, 0, 9)]):
            runs.rows = None
            ids = torch.tensor(runs.sequences[part[0][0]])
            runs.flat(part)  # sets the rows; recorded as its own pass
            recorder.begin_pass()
            runs.model(ids, runs.current())
            logits = runs.logits[part[0][0], part[0][2] - 1][None]
            recorder.external("logprob", [logits], [logits.log_softmax(-1)[:, :1]])
            recorder.end_pass()
    manifest = recorder.write(tmp_path / "capture")
    taps = Taps.open(tmp_path / "capture")
    assert manifest.passes == 4
    assert manifest.recomputed == 14
    assert manifest.recomputed_differing == ()
    assert taps.keys("logprob:out0").tolist() == [4, (1 << 32) | 8]
    assert taps.tap("logprob:in0").producer == "step"


def test_rows_of_a_step_can_be_named(runs: Runs, tmp_path: Path) -> None:
    with Recorder(runs.model, runs, CapturePlan(store="tensors")) as recorder:
        runs.flat([(0, 0, 5)])
        values = torch.tensor([[1.0], [2.0]])
        recorder.external("logprob", [], [values], torch.tensor([3, 0]), torch.tensor([7, 1]))
    recorder.write(tmp_path / "capture")
    taps = Taps.open(tmp_path / "capture")
    assert taps.keys("logprob:out0").tolist() == [1, (3 << 32) | 7]
    assert taps.value("logprob:out0").tolist() == [[2.0], [1.0]]


def test_capture_moves_no_bit(runs: Runs) -> None:
    WAYS["engine"](runs)
    free = dict(runs.logits)
    for level in ("module", "operator"):
        with Recorder(runs.model, runs, CapturePlan(level=level, store="tensors", replay=level == "operator")):
            WAYS["engine"](runs)
        assert all(torch.equal(free[key], runs.logits[key]) for key in free)


def test_digests_made_elsewhere_are_copied_out_of_their_buffer(runs: Runs, tmp_path: Path) -> None:
    """A compiled graph writes the digests of every pass into the same buffer."""
    buffer = torch.zeros(5, 2, dtype=torch.int64)
    like = torch.empty(5, 8, device="meta")
    with Recorder(runs.model, runs, CapturePlan()) as recorder:
        for sequence in (0, 2):
            runs.flat([(sequence, 0, 3)], head=False)
            buffer.fill_(sequence + 1)
            recorder.digests(Place("layers.0.made", "out0"), buffer[:3], "K", 5, like)
        buffer.zero_()
    recorder.write(tmp_path / "capture")
    assert Taps.open(tmp_path / "capture").digests("layers.0.made:out0")[:, 0].tolist() == [1, 1, 1, 3, 3, 3]


def test_a_capture_with_digests_of_another_version_is_refused(runs: Runs, tmp_path: Path) -> None:
    record(runs, "engine", tmp_path)
    assert CaptureManifest.model_fields["schema_version"].default == digest.VERSION
    manifest = tmp_path / "engine" / "manifest.json"
    raw = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(raw | {"schema_version": digest.VERSION - 1}))
    with pytest.raises(UserError, match=r"schema version 1, this samebits reads 2") as caught:
        Taps.open(tmp_path / "engine")
    assert "make the artifact again" in str(caught.value.next_step)


@pytest.mark.parametrize("bit", [0, 6, 7])
def test_one_bit_moved_anywhere_in_a_row_is_seen_in_that_row_alone(runs: Runs, tmp_path: Path, bit: int) -> None:
    """Of an output wider than the model, in every byte of one token's row."""
    before = record(runs, "engine", tmp_path / "before", CapturePlan())
    for place in range(4 * 16):

        def flip(_module: torch.nn.Module, _args: Any, out: torch.Tensor, place: int = place) -> torch.Tensor:
            moved = out.clone()
            moved[7].view(torch.uint8)[place] ^= 1 << bit
            return moved

        handle = runs.model.layers[1].up.register_forward_hook(flip)
        after = record(runs, "engine", tmp_path / f"{place}", CapturePlan())
        handle.remove()
        moved = (before.digests("layers.1.up:out0") != after.digests("layers.1.up:out0")).all(dim=1)
        assert moved.nonzero().view(-1).tolist() == [7]
