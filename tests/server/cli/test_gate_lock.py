"""Which lock stays: the one that proves more, unless what it was proved for is no longer there."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebits.server.cli import gate_lock
from samebits.tools.schema.artifacts.base import Environment
from samebits.tools.schema.artifacts.regression import Lock

BOTH = {"rollout": {"torch": "2.13.0"}, "trainer": {"torch": "2.13.0"}}
TRAINER = {"trainer": {"torch": "2.13.0"}}


def lock(path: Path, *axes: str, proved: dict[str, dict[str, str]], micro_batch: str = "4") -> Path:
    held = Lock(
        contract_version=2,
        gate="ab",
        axes=dict.fromkeys(axes, 64),
        not_proved={},
        settings={"rollout": {"side": "vllm"}, "trainer": {"micro_batch": micro_batch}},
        proved=proved,
        environment=Environment(platform="x86"),
        sides={},
    )
    path.write_text(held.model_dump_json(), encoding="utf-8")
    return path


def test_where_there_is_none_it_is_written(tmp_path: Path) -> None:
    made = lock(tmp_path / "made", "repeat", proved=BOTH)
    assert gate_lock.put(made, tmp_path / "samebits.lock") == ""
    assert (tmp_path / "samebits.lock").read_bytes() == made.read_bytes()


def test_a_gate_that_proves_less_leaves_it_and_says_what_is_lacking(tmp_path: Path) -> None:
    target = lock(tmp_path / "samebits.lock", "repeat", "trainer_repeat", proved=BOTH)
    before = target.read_bytes()
    said = gate_lock.put(lock(tmp_path / "made", "trainer_repeat", proved=TRAINER), target)
    assert target.read_bytes() == before
    assert "left as it is: it also proves repeat, the rollout side, which this gate does not" in said
    assert f"--axes repeat --resume {tmp_path}" in said
    assert "\n" not in said


def test_a_side_less_is_less_even_where_the_axes_are_the_same(tmp_path: Path) -> None:
    target = lock(tmp_path / "samebits.lock", "trainer_repeat", proved=BOTH)
    said = gate_lock.put(lock(tmp_path / "made", "trainer_repeat", proved=TRAINER), target)
    assert "it also proves the rollout side" in said
    assert Lock.model_validate_json(target.read_bytes()).proved == BOTH


@pytest.mark.parametrize("axes", [("repeat",), ("repeat", "batch")])
def test_a_gate_that_proves_at_least_all_of_it_replaces_it_without_a_word(tmp_path: Path, axes: tuple[str]) -> None:
    target = lock(tmp_path / "samebits.lock", "repeat", proved=TRAINER)
    made = lock(tmp_path / "made", *axes, proved=BOTH)
    assert gate_lock.put(made, target) == ""
    assert target.read_bytes() == made.read_bytes()


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"micro_batch": "8"}, "trainer: micro_batch"), ({"proved": {"trainer": {"torch": "2.14.0"}}}, "trainer: torch")],
)
def test_a_lock_of_another_set_up_is_void_and_replaced_with_a_word(
    tmp_path: Path, changed: dict[str, object], named: str
) -> None:
    target = lock(tmp_path / "samebits.lock", "repeat", "trainer_repeat", proved=BOTH)
    made = lock(tmp_path / "made", "trainer_repeat", **({"proved": TRAINER} | changed))  # type: ignore[arg-type]
    said = gate_lock.put(made, target)
    assert target.read_bytes() == made.read_bytes()
    assert f"proved for something else ({named}); no longer in it: repeat, the rollout side" in said


def test_what_is_no_lock_is_replaced_with_a_word(tmp_path: Path) -> None:
    (tmp_path / "samebits.lock").write_text("{}")
    made = lock(tmp_path / "made", "repeat", proved=BOTH)
    assert "no lock of this version" in gate_lock.put(made, tmp_path / "samebits.lock")
    assert (tmp_path / "samebits.lock").read_bytes() == made.read_bytes()
