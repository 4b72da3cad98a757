"""Devices and locks; the GPUs' names are made up, as there need be none here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import slots as slots_module
from samebits.server.jobs.index import Index
from samebits.server.jobs.pool import Pool
from samebits.server.jobs.slots import CPU, Need, Slots, default_folder, need_of, visible
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


def test_two_servers_with_other_temporary_folders_share_one_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SAMEBITS_LOCKS", raising=False)
    monkeypatch.setattr(slots_module, "PLACES", (tmp_path,), raising=False)  # where it is the user's own is left alone
    taken = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for variable in ("TMPDIR", "HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
            monkeypatch.setenv(variable, str(tmp_path / name))
        monkeypatch.setattr(tempfile, "tempdir", None)
        assert tempfile.gettempdir() == str(tmp_path / name)
        taken.append(Slots(default_folder(), ("GPU-aaaa",)).take(Need(gpus=1), name))
    assert taken[0] is not None
    assert taken[1] is None
    taken[0].close()
    assert Slots(default_folder(), ("GPU-aaaa",)).take(Need(gpus=1), "three") is not None


@pytest.mark.parametrize("fault", ["link", "open to others", "another user's"])
def test_a_lock_folder_that_others_can_change_is_refused(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "locks"
    assert Slots(folder, TWO).take(Need(gpus=1), "one") is not None, "one of this user alone is taken"
    if fault == "link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    elif fault == "open to others":
        folder.chmod(0o777)
    else:
        monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(UserError, match=r"not a folder of this user alone.*SAMEBITS_LOCKS"):
        Slots(folder, TWO).take(Need(gpus=1), "two")


@pytest.mark.anyio
@pytest.mark.usefixtures("strays")
async def test_two_servers_run_their_jobs_on_one_gpu_after_each_other(
    asked: Callable[..., MeasureRequest], tmp_path: Path
) -> None:
    request = asked("sleep", 0.5)
    request = request.model_copy(update={"experiment": request.experiment.model_copy(update={"device": "auto"})})
    pools = [Pool(Index(tmp_path / name), Slots(tmp_path / "locks", ("GPU-aaaa",))) for name in ("one", "two")]
    async with anyio.create_task_group() as group:
        for pool in pools:
            group.start_soon(pool.run)
        try:
            jobs = [(pool, pool.submit(request)) for pool in pools for _ in range(2)]
            for pool, job in jobs:
                await pool.wait(job, 120)
        finally:
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for pool in pools:
                    await pool.close()
    rows = [job_folder.outcome(pool.index.folder(job)).result.rows[0] for pool, job in jobs]  # type: ignore[union-attr]
    assert {row["devices"] for row in rows} == {"GPU-aaaa"}
    spans = sorted((float(row["started"]), float(row["ended"])) for row in rows)  # type: ignore[arg-type]
    assert all(before[1] <= after[0] for before, after in pairwise(spans)), spans


LISTS = """#!/bin/sh
echo "0, GPU-aaaa"
"""


@pytest.fixture
def one_gpu(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project on a machine whose nvidia-smi lists one GPU; the program is made up, as there need be no GPU here."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(LISTS)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return project


def test_a_command_waits_for_the_gpu_that_a_server_has_and_names_its_job(one_gpu: Path) -> None:
    held = Slots(default_folder(), ("GPU-aaaa",)).take(Need(gpus=1), "a-server's-job")
    assert held is not None
    command = [sys.executable, "-m", "samebits.server.cli.main", "measure", "--set", "device=auto", "--json"]
    with subprocess.Popen(command, cwd=one_gpu, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        try:
            assert process.stderr.readline() == "waiting for a GPU: a-server's-job has it\n"
            assert not (one_gpu / ".samebits").exists(), "nothing was started"
        finally:
            held.close()
        outcome = json.loads(process.stdout.read())
    assert outcome["result"]["rows"][0]["devices"] == "GPU-aaaa"
    held = Slots(default_folder(), ("GPU-aaaa",)).take(Need(gpus=1), "later")
    assert held is not None, "it was given back"
    held.close()


def test_a_command_that_is_ended_while_it_waits_leaves_nothing(one_gpu: Path) -> None:
    held = Slots(default_folder(), ("GPU-aaaa",)).take(Need(gpus=1), "one")
    assert held is not None
    command = [sys.executable, "-m", "samebits.server.cli.main", "measure", "--set", "device=auto"]
    with subprocess.Popen(command, cwd=one_gpu, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert "waiting" in process.stderr.readline()
        finally:
            process.terminate()
        assert "broken off; nothing was started" in process.stderr.read()
    assert process.returncode == 2
    assert not (one_gpu / ".samebits").exists()
    held.close()
