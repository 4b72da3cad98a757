"""Devices and locks; the GPUs' names are made up, as there need be none here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from samebits.server.jobs.slots import CPU, Need, Slots, need_of, visible
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import InspectRequest, MeasureRequest

TWO = ("GPU-aaaa", "GPU-bbbb")
LISTED = "0, GPU-aaaa\n1, GPU-bbbb\n2, GPU-cccc\n"


def measure(**experiment: Any) -> MeasureRequest:
    return MeasureRequest.model_validate({"experiment": experiment})


def test_each_gpu_is_taken_once_and_the_job_sees_it_alone(tmp_path: Path) -> None:
    slots = Slots(tmp_path, TWO)
    one, two = slots.take(Need(gpus=1), "one"), slots.take(Need(gpus=1), "two")
    assert one is not None
    assert two is not None
    assert {one.env["CUDA_VISIBLE_DEVICES"], two.env["CUDA_VISIBLE_DEVICES"]} == set(TWO)
    assert one.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert Slots(tmp_path, TWO).take(Need(gpus=1), "three") is None, "another server must be kept out too"
    one.close()
    assert slots.take(Need(gpus=2), "four") is None, "one is not enough"
    again = slots.take(Need(gpus=1), "five")
    assert again is not None
    assert again.names == one.names


def test_too_few_free_gpus_leave_none_taken(tmp_path: Path) -> None:
    slots = Slots(tmp_path, TWO)
    held = slots.take(Need(gpus=1), "one")
    assert held is not None
    assert slots.take(Need(gpus=2), "two") is None
    held.close()
    assert slots.take(Need(gpus=2), "three") is not None


def test_a_job_on_the_cpu_sees_no_gpu(tmp_path: Path) -> None:
    held = Slots(tmp_path, TWO).take(Need(slot=CPU), "one")
    assert held is not None
    assert held.env["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("request_", "available", "need"),
    [
        (measure(device="cpu"), TWO, Need(slot="cpu")),
        (measure(), TWO, Need(gpus=1)),
        (measure(), (), Need(slot="cpu")),
        (measure(rollout={"engine": {"tensor_parallel_size": 2}}), TWO, Need(gpus=2)),
        (InspectRequest.model_validate({"experiment": {}}), TWO, Need(slot="look")),
    ],
)
def test_a_request_takes_what_it_needs(request_: Any, available: tuple[str, ...], need: Need) -> None:
    assert need_of(request_, available) == need


def test_more_gpus_than_there_are_is_refused_at_once() -> None:
    with pytest.raises(UserError, match="asks for 4 GPUs, 2 can be used here"):
        need_of(measure(rollout={"engine": {"tensor_parallel_size": 4}}), TWO)


@pytest.mark.parametrize(
    ("allowed", "uuids"),
    [
        (None, ("GPU-aaaa", "GPU-bbbb", "GPU-cccc")),
        ("2,0", ("GPU-cccc", "GPU-aaaa")),
        ("GPU-b", ("GPU-bbbb",)),
        ("", ()),
        ("7", ()),
    ],
)
def test_only_gpus_that_the_server_may_see_are_used(allowed: str | None, uuids: tuple[str, ...]) -> None:
    assert visible(LISTED, allowed) == uuids
