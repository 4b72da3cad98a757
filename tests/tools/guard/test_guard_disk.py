"""What a guard says of what it stored, and that a disk which refuses hides no difference."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.full_disk import FILL

from samebits.tools.guard import Guard, NotExact
from samebits.tools.schema.errors import UserError

ROLLOUT = torch.tensor([-1.0, -2.0, -3.0])
TRAINER = torch.tensor([-1.0, -2.5, -3.0])
EVERY = torch.ones(3, dtype=torch.bool)
IDS: dict[str, Any] = {"prompt_ids": [[1]], "sampled_ids": [[1, 2, 3]]}
FIGURES = "1 of 3 valid tokens"


def said(guard: Guard, version: int, **ids: Any) -> str:
    with pytest.raises(NotExact, match=FIGURES) as caught:
        guard.check(ROLLOUT, TRAINER, EVERY, version, **ids)
    text = str(caught.value)
    assert text.count("next:") == 1
    if caught.value.stored is not None:
        assert f"stored in {caught.value.stored}" in text
    return text


def test_a_later_batch_is_not_taken_for_the_stored_one(tmp_path: Path) -> None:
    guard = Guard(tmp_path)
    guard.check(ROLLOUT, ROLLOUT.clone(), EVERY, 0)
    stored = tmp_path / "difference-1" / "rollout"
    assert f"stored in {stored}; next: samebits diff --rollout {stored}" in said(guard, 4, **IDS)
    for ids in (IDS, {}):
        text = said(guard, 5, **ids)
        assert "weight version 5; max" in text
        assert f"not stored: what lies in {stored} is an earlier batch (call 2, weight version 4)" in text
        assert text.endswith(f"next: samebits diff --rollout {stored}, which starts from the batch of call 2")
    with pytest.raises(UserError, match=r"is an earlier batch \(call 2, weight version 4\)"):
        guard.check(ROLLOUT, TRAINER * torch.nan, EVERY, 6, **IDS)


def test_the_exception_names_the_stored_batch_only_where_it_is_this_one(tmp_path: Path) -> None:
    guard, found = Guard(tmp_path), []
    for _ in range(2):
        with pytest.raises(NotExact) as caught:
            guard.check(ROLLOUT, TRAINER, EVERY, 0, **IDS)
        found.append(caught.value.stored)
    assert found == [guard.stored, None]
    assert guard.stored == tmp_path / "difference-1" / "rollout"


def test_where_the_stored_batch_has_no_ids_the_first_one_with_ids_is_stored_too(tmp_path: Path) -> None:
    guard = Guard(tmp_path)
    for _ in range(2):
        assert said(guard, 1).endswith("give prompt_ids and sampled_ids, so that samebits diff can use a batch")
    assert said(guard, 2, **IDS).endswith(f"samebits diff --rollout {tmp_path / 'difference-2' / 'rollout'}")
    assert "is an earlier batch (call 3, weight version 2)" in said(guard, 3, **IDS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["difference-1", "difference-2", "guard.jsonl"]


def test_a_removed_folder_hides_no_difference(tmp_path: Path) -> None:
    guard = Guard(tmp_path / "g")
    shutil.rmtree(tmp_path / "g")
    for version in (1, 2):
        text = said(guard, version, **IDS)
        assert "could not be stored: No such file or directory" in text
        assert "no line of it in guard.jsonl: No such file or directory" in text
    assert list(tmp_path.iterdir()) == []
    with pytest.warns(UserWarning, match=r"batch 3; no line of it in guard.jsonl: No such file"):
        assert guard.check(ROLLOUT, ROLLOUT.clone(), EVERY, 3).exact
    with pytest.raises(UserError, match="NaN or infinite; could not be stored: No such file"):
        guard.check(ROLLOUT, TRAINER * torch.nan, EVERY, 3)
    (tmp_path / "g").mkdir()
    assert "stored in" in said(guard, 4, **IDS), "stored once there is room"


def test_told_to_continue_it_goes_on_with_a_warning_each_time(tmp_path: Path) -> None:
    guard = Guard(tmp_path / "g", on_difference="continue")
    shutil.rmtree(tmp_path / "g")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            assert guard.check(ROLLOUT, TRAINER, EVERY, 1, **IDS).nonzero == 1
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2
    for number, text in enumerate(texts, 1):
        assert text.startswith(f"samebits guard: batch {number}: rollout and trainer logprobs differ at {FIGURES}")
        assert "could not be stored: No such file or directory" in text


def test_whatever_fails_while_a_batch_is_stored_leaves_no_folder(tmp_path: Path) -> None:
    wide: dict[str, Any] = {"prompt_ids": [[1 << 40]], "sampled_ids": [[1, 2, 3]]}  # fits no int32
    assert "could not be stored: " in said(Guard(tmp_path), 0, **wide)
    assert [path.name for path in tmp_path.iterdir()] == ["guard.jsonl"]
    assert json.loads((tmp_path / "guard.jsonl").read_text())["nonzero"] == 1


ON_A_FULL_DISK = (
    FILL
    + """
import warnings
import torch
from samebits.tools.guard import Guard, NotExact
lp, every = -torch.ones(20_000), torch.ones(20_000, dtype=torch.bool)
ids = {"prompt_ids": [[1]], "sampled_ids": [[1] * 20_000]}
told = []
guards = [Guard("stops"), Guard("goes_on", on_difference="continue")]
fill()
for guard in guards:
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                told.append(["on", guard.check(lp, lp * 1.01, every, 1, **ids).nonzero, str(caught[0].message)])
            except NotExact as error:
                told.append(["raised", error.stats.nonzero, str(error)])
print(json.dumps([told, sorted(path.name for path in Path().glob("*/*/"))]))
"""
)


def test_a_full_disk_hides_no_difference_and_leaves_no_folder(small_disk: Callable[..., str]) -> None:
    """The disk is a real file system of 512 KiB."""
    told, left = json.loads(small_disk(512, sys.executable, "-c", ON_A_FULL_DISK))
    assert [(how, nonzero) for how, nonzero, _ in told] == [("raised", 20_000)] * 2 + [("on", 20_000)] * 2
    for _, _, text in told:
        assert "could not be stored: " in text
        assert "No space left on device" in text
        assert "guard.jsonl" in text
    assert left == []


@pytest.mark.parametrize(("name", "why"), [("file", "File exists"), ("file/g", "Not a directory"), (None, "not None")])
def test_a_folder_that_cannot_be_made_is_one_error(tmp_path: Path, name: str | None, why: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"Guard's folder .*cannot be made .*{why}.*Next: name a folder"):
        Guard(tmp_path / name if name else None)  # type: ignore[arg-type]
    for other in ("/proc/g", "a\0b"):
        with pytest.raises(UserError, match="cannot be made"):
            Guard(other)


def test_of_a_line_that_a_killed_run_left_half_only_that_one_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "guard.jsonl"
    Guard(tmp_path).check(ROLLOUT, ROLLOUT.clone(), EVERY, 7)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    guard = Guard(tmp_path)
    for version in (8, 9):
        guard.check(ROLLOUT, ROLLOUT.clone(), EVERY, version)
    first, half, *after = path.read_bytes().splitlines()
    assert (first + b"\n", half) == (whole, whole[:20])
    assert [json.loads(line)["weight_version"] for line in after] == [8, 9]
