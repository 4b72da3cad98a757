"""Edits put rows in, or move one element by one ulp; an edit that does nothing is an error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from samebits.tools.align.taps import Taps
from samebits.tools.capture.recorder import Recorder
from samebits.tools.diff.bits import compare
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.sites import CapturePlan, Edit, Flip, Replace, Site

if TYPE_CHECKING:
    from conftest import Runs


def score(
    runs: Runs, *edits: Edit, plan: CapturePlan | None = None, folder: Path | None = None
) -> dict[tuple[int, int], torch.Tensor]:
    for layer in runs.model.layers:
        layer.mix.cache.clear()
    runs.logits.clear()
    with Recorder(runs.model, runs, plan, edits) as recorder:
        runs.decode([0, 1, 2, 3])
    if folder is not None:
        recorder.write(folder)
    return dict(runs.logits)


def changed(a: dict[tuple[int, int], torch.Tensor], b: dict[tuple[int, int], torch.Tensor]) -> set[tuple[int, int]]:
    return {key for key in a if not torch.equal(a[key], b[key])}


def site(module: str, port: str = "out0", **more: object) -> Site:
    return Site(module=module, port=port, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "where",
    [
        site("embed"),
        site("layers.1.norm", "in0"),
        site("layers.1.mix"),
        site("layers.0.shift", call=1),
        site("layers.1.mix", "in0"),
        site("layers.1.down", "in0"),
        site("layers.1"),
        site("layers.1.norm", op="aten.add_.Tensor"),
        site("layers.1.shift", op="aten.add.Tensor"),
        site("layers.1.down", "in0", op="aten.mm.default"),
    ],
    ids=str,
)
def test_a_value_put_in_at_one_token_reaches_the_logits_from_there_on(runs: Runs, where: Site, tmp_path: Path) -> None:
    if where.module == "layers.1.shift":  # the shared module is known by its first name
        where = site("layers.0.shift", op="aten.add.Tensor", call=1)
    free = score(runs)
    file = tmp_path / "value.safetensors"
    save_file({"value": torch.tensor([[33.0]]), "rows": torch.tensor([[1, 4]], dtype=torch.int32)}, file)
    hit = changed(free, score(runs, Replace(site=where, tensors=str(file), column=3)))
    assert (1, 4) in hit
    assert {s for s, _ in hit} == {1}
    assert min(p for _, p in hit) == 4


def test_a_flip_moves_one_element_by_one_ulp(runs: Runs) -> None:
    free = score(runs)
    flipped = score(runs, Flip(site=site("head"), sequence=1, position=4, column=30))
    assert changed(free, flipped) == {(1, 4)}
    bits = compare(free[1, 4][None], flipped[1, 4][None])
    assert (bits.elements_differing, bits.max_ulps) == (1, 1)
    assert free[1, 4][30] != flipped[1, 4][30]


def test_edits_alone_need_no_plan_and_leave_no_hooks(runs: Runs) -> None:
    free = score(runs)
    score(runs, Flip(site=site("embed"), sequence=0, position=0))
    assert changed(free, score(runs)) == set()
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in runs.model.modules())


def test_the_tap_shows_what_the_side_computed_before_the_edit(runs: Runs, tmp_path: Path) -> None:
    plan = CapturePlan(store="tensors")
    score(runs, plan=plan, folder=tmp_path / "free")
    score(runs, Flip(site=site("layers.0.up"), sequence=2, position=1), plan=plan, folder=tmp_path / "edited")
    free, edited = Taps.open(tmp_path / "free"), Taps.open(tmp_path / "edited")
    assert torch.equal(free.value("layers.0.up:out0"), edited.value("layers.0.up:out0"))
    assert compare(free.value("layers.0:out0"), edited.value("layers.0:out0")).rows_differing == 1
    assert torch.equal(free.value("layers.0:in0"), edited.value("layers.0:in0"))


def stored(folder: Path, taps: Taps, name: str) -> tuple[str, str, str]:
    tap = taps.tap(name)
    return str(folder / "taps.safetensors"), f"value.{taps.numbers[name]}", f"rows.{tap.rowset}"


def test_the_other_sides_value_put_in_gives_the_other_sides_logits(runs: Runs, tmp_path: Path) -> None:
    free = score(runs, plan=CapturePlan(store="tensors"), folder=tmp_path / "good")
    file, value, rows = stored(tmp_path / "good", Taps.open(tmp_path / "good"), "layers.1.down:out0")
    with torch.no_grad():
        runs.model.layers[1].down.weight[2].mul_(3)
    broken = score(runs)
    assert changed(free, broken)
    put = Replace(site=site("layers.1.down"), tensors=file, value=value, rows=rows)
    assert changed(free, score(runs, put)) == set()
    columns = Replace(site=site("layers.1.down"), tensors=file, value=value, rows=rows, source=(2, 3), column=2)
    assert changed(free, score(runs, columns)) == set()
    beside = Replace(site=site("layers.1.down"), tensors=file, value=value, rows=rows, source=(1, 2), column=1)
    assert changed(broken, score(runs, beside)) == set()


def test_rows_not_named_keep_their_own_value(runs: Runs, tmp_path: Path) -> None:
    free = score(runs)
    rows = torch.tensor([[3, 2], [0, 1], [2, 99]], dtype=torch.int32)
    save_file({"value": torch.full((3, 8), 40.0), "rows": rows}, tmp_path / "v.safetensors")
    hit = changed(free, score(runs, Replace(site=site("layers.1"), tensors=str(tmp_path / "v.safetensors"))))
    assert hit == {(3, 2), (0, 1)}


def test_an_edit_that_changed_nothing_is_an_error(runs: Runs) -> None:
    with pytest.raises(UserError, match="never occurred"):
        score(runs, Flip(site=site("layers.7.norm"), sequence=0, position=0))
    with pytest.raises(UserError, match="never occurred"):
        score(runs, Flip(site=site("layers.0.norm", call=1), sequence=0, position=0))
    with pytest.raises(UserError, match="none of its rows"):
        score(runs, Flip(site=site("layers.0.norm"), sequence=0, position=77))


def test_an_edit_that_does_not_fit_is_an_error(runs: Runs, tmp_path: Path) -> None:
    rows = torch.tensor([[0, 0]], dtype=torch.int32)
    for name, value in {
        "half": torch.zeros(1, 8, dtype=torch.float16),
        "wide": torch.zeros(1, 9),
        "flat": torch.zeros(8),
    }.items():
        save_file({"value": value, "rows": rows}, tmp_path / f"{name}.safetensors")
    for name, reason in {"half": "float16", "wide": "columns", "flat": "not \\[rows", "none": "cannot be used"}.items():
        with pytest.raises(UserError, match=reason):
            score(runs, Replace(site=site("layers.1"), tensors=str(tmp_path / f"{name}.safetensors")))
    with pytest.raises(UserError, match="column 8 of 8"):
        score(runs, Flip(site=site("layers.1"), sequence=0, position=0, column=8))
    with pytest.raises(UserError, match="no token rows"):
        score(runs, Flip(site=site("layers.1.down", "in1", op="aten.mm.default"), sequence=0, position=0))


def test_a_step_outside_of_any_module_can_be_edited(runs: Runs) -> None:
    flip = Flip(site=site("logprob"), sequence=0, position=4)
    with Recorder(runs.model, runs, None, (flip,)) as recorder:
        runs.flat([(0, 0, 5)])
        value = torch.tensor([[1.0]])
        (out,) = recorder.external("logprob", [], [value])
    assert out.item() == 1 + 2**-23
    assert value.item() == 1


@pytest.mark.parametrize(
    "where", [site("layers.1.mix"), site("layers.1.norm", "in0"), site("layers.1.down", op="aten.mm.default")], ids=str
)
def test_padded_batches_are_edited_in_their_own_layout(runs: Runs, tmp_path: Path, where: Site) -> None:
    runs.padded([0, 1, 2])
    free = dict(runs.logits)
    file = tmp_path / "value.safetensors"
    save_file({"value": torch.tensor([[33.0]]), "rows": torch.tensor([[2, 1]], dtype=torch.int32)}, file)
    with Recorder(runs.model, runs, None, (Replace(site=where, tensors=str(file), column=5),)):
        runs.padded([0, 1, 2])
    hit = changed({key: row for key, row in free.items() if key[0] >= 0}, runs.logits)
    assert (2, 1) in hit
    assert hit <= {(2, 1), (2, 2)}


def test_a_plan_of_some_sites_records_them_as_the_whole_does_and_edits_elsewhere_are_made(
    runs: Runs, tmp_path: Path
) -> None:
    flip = Flip(site=site("layers.0.down"), sequence=1, position=4, column=2)
    plan = CapturePlan(level="operator", modules=("layers.1.mix",), ports="all")
    wanted = (site("layers.0.down", "in0"), site("layers.1"), site("layers.1.mix", op="aten.add.Tensor"))
    whole = score(runs, flip, plan=plan, folder=tmp_path / "whole")
    some = score(runs, flip, plan=plan.model_copy(update={"sites": wanted}), folder=tmp_path / "some")
    plain = score(runs)
    assert not changed(whole, some)
    assert changed(plain, some)
    every, few = Taps.open(tmp_path / "whole"), Taps.open(tmp_path / "some")
    assert set(few.numbers) == {str(one) for one in wanted}
    assert len(every.numbers) > len(wanted)
    for one in few.numbers:
        assert few.tap(one).digest == every.tap(one).digest
        assert torch.equal(few.digests(one), every.digests(one))
    places = sorted(few.numbers, key=lambda one: few.tap(one).order)
    assert places == sorted(few.numbers, key=lambda one: every.tap(one).order)
