"""Jobs on a real Ray cluster of two nodes on this machine; the worker is the stand-in of tests/server/conftest.py."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs.index import Index
from samebits.server.jobs.pool import Pool
from samebits.server.jobs.slots import Slots
from samebits.tools.schema.requests import MeasureRequest
from samebits.tools.schema.results import Failed, Succeeded

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("strays"),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None and not os.environ.get("SAMEBITS_REQUIRE_RAY"),
        reason="not run: ray not installed",
    ),
]
Asked = Callable[..., MeasureRequest]
TOKEN = "0123456789abcdef0123456789abcdef"


@dataclass
class Ray:
    """The cluster, and where its nodes keep samebits' files."""

    process: subprocess.Popen[str]
    address: str
    node: Path
    variables: dict[str, str]

    def kill_a_node(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("kill\n")
        self.process.stdin.flush()
        assert len(json.loads(self.process.stdout.readline())["killed"]) >= 2, "the raylet and the job's actor"

    def strays(self) -> list[int]:
        """Processes of jobs on the nodes."""
        mark, found = f"SAMEBITS_JOB={self.node}{os.sep}".encode(), []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:
    place = tmp_path_factory.mktemp("ray")
    (place / "token").write_text(TOKEN)
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(place / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    nodes = {"SAMEBITS_NODE": str(place / "node"), "SAMEBITS_LOCKS": str(place / "locks"), "PLANTED_TOKEN": "planted"}
    with (place / "log").open("w") as log, tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as short:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ray_cluster.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # Its sockets lie there, and a socket's path has 107 bytes at most.
            env=dict(os.environ) | variables | nodes | {"RAY_TMPDIR": short},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, (place / "log").read_text()[-3000:]
            yield Ray(process, json.loads(line)["address"], place / "node", variables)
        finally:
            process.stdin.close()
            process.stdout.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(300)
            process.kill()
            process.wait()


@pytest.fixture
def joined(cluster: Ray, monkeypatch: pytest.MonkeyPatch) -> Ray:
    """The cluster, its token at hand."""
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)
    return cluster


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Pool]:
    pool = Pool(Index(folder / "jobs"), Slots(folder / "locks", ()))
    async with anyio.create_task_group() as group:
        group.start_soon(pool.run)
        try:
            yield pool
        finally:
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await pool.close()


def for_ray(request: MeasureRequest, cluster: Ray, **rollout: Any) -> MeasureRequest:
    """The request with this cluster's address; `device`: auto takes the GPU, which only the second node has."""
    raw = request.model_dump(mode="json")
    raw["experiment"]["pool"] |= {"backend": "ray", "ray_address": cluster.address}
    raw["experiment"]["device"] = rollout.pop("device", "auto")
    raw["experiment"]["rollout"] |= rollout
    return MeasureRequest.model_validate(raw)


async def finished(pool: Pool, job: str, seconds: float = 300) -> tuple[str, Any]:
    await pool.wait(job, seconds)
    row = pool.index.get(job)
    assert row is not None
    return row.state, job_folder.outcome(pool.index.folder(job))


async def working(pool: Pool, job: str, phase: str = "stand-in") -> None:
    """Until the worker on the node has said something."""
    with anyio.fail_after(300):
        while (event := job_folder.last_event(pool.index.folder(job))) is None or event.phase != phase:
            await anyio.sleep(0.05)


async def test_inputs_go_to_a_node_progress_comes_and_artifacts_return(
    asked: Asked, tmp_path: Path, joined: Ray
) -> None:
    loaded = "ray" in sys.modules  # a test of another file may have done that in this process
    model = tmp_path / "model"
    (model / "deep").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "deep" / "weights").write_text("w" * 1000)
    async with running(tmp_path) as pool:
        jobs = [
            pool.submit(for_ray(asked("read"), joined, model=str(model))),
            pool.submit(for_ray(asked("manifest"), joined, device="cpu")),
            pool.submit(for_ray(asked("manifest", 1), joined, device="cpu")),
        ]
        (read_state, read), (made_state, made), (_, torn) = [await finished(pool, job) for job in jobs]
        folder = pool.index.folder(jobs[1])
        assert not (pool.index.folder(jobs[2]) / "gap").exists()
    assert (read_state, made_state) == ("succeeded", "succeeded"), (read, made)
    assert isinstance(torn, Failed)
    assert "gap.safetensors: its bytes are not those which the artifact's manifest names" in torn.message
    rows = {row["path"]: row["text"] for row in read.result.rows}
    assert rows == {"config.json": "{}", "deep/weights": "w" * 1000}
    named = json.loads((folder / "gap" / "manifest.json").read_text())["files"]
    assert named == {"gap.safetensors": hashlib.sha256(b"\0" * 10).hexdigest()}
    assert (folder / "gap" / "gap.safetensors").read_bytes() == b"\0" * 10
    assert not (folder / "outside").is_symlink(), "links are not brought back"
    assert not (folder / ".incoming").exists()
    phases = [json.loads(line)["phase"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert phases[0] == "ray"
    assert phases[-1] == "stand-in"
    assert len(list((joined.node / "store").iterdir())) == 2, "the two files of the model"
    assert list((joined.node / "work").iterdir()) == [], "nothing of the job stays but what the store holds"
    assert ("ray" in sys.modules) == loaded, "only the submitter imports Ray"


@pytest.mark.slow
async def test_the_worker_sees_the_gpu_that_ray_gave_and_no_secret_of_the_node(
    asked: Asked, tmp_path: Path, joined: Ray
) -> None:
    async with running(tmp_path) as pool:
        jobs = [pool.submit(for_ray(asked("env"), joined, device=device)) for device in ("auto", "cpu")]
        found = []
        for job in jobs:
            state, outcome = await finished(pool, job)
            assert state == "succeeded", outcome
            found.append({row["name"]: row["value"] for row in outcome.result.rows})
    assert [env["CUDA_VISIBLE_DEVICES"] for env in found] == ["0", ""]
    assert all("planted" not in env.values() and TOKEN not in env.values() for env in found)


@pytest.mark.slow
async def test_paths_of_the_node_are_those_of_this_machine_in_the_answer(
    asked: Asked, tmp_path: Path, joined: Ray
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    request = for_ray(asked("elsewhere"), joined).model_copy(update={"rollout": str(rows)})
    async with running(tmp_path) as pool:
        job = pool.submit(request)
        _, outcome = await finished(pool, job)
        folder = pool.index.folder(job)
    assert isinstance(outcome, Succeeded)
    assert (folder / outcome.result.ids["rollout"]).resolve() == rows
    assert f"--rollout {rows} " in outcome.result.next
    assert str(joined.node) not in outcome.model_dump_json()


@pytest.mark.slow
async def test_cancel_reaches_the_node_also_where_the_worker_does_not_answer(
    asked: Asked, tmp_path: Path, joined: Ray, eventually: Any
) -> None:
    async with running(tmp_path) as pool:
        for do in ("daemon", "hang"):
            job = pool.submit(for_ray(asked(do), joined))
            await working(pool, job)
            eventually(joined.strays)
            pool.cancel(job)
            assert (await finished(pool, job))[0] == "cancelled"
            eventually(lambda: not joined.strays())


@pytest.mark.slow
async def test_the_time_limit_is_kept_on_the_node(asked: Asked, tmp_path: Path, joined: Ray) -> None:
    async with running(tmp_path) as pool:
        job = pool.submit(for_ray(asked("sleep", 60, time_limit_s=1), joined))
        state, outcome = await finished(pool, job)
    assert (state, outcome.state, outcome.limit_s) == ("timed_out", "timed_out", 1)


@pytest.mark.slow
async def test_a_crash_on_the_node_is_told_as_one_here(asked: Asked, tmp_path: Path, joined: Ray) -> None:
    async with running(tmp_path) as pool:
        job = pool.submit(for_ray(asked("segfault"), joined))
        state, outcome = await finished(pool, job)
        folder = pool.index.folder(job)
    assert state == "failed"
    assert "killed by signal 11" in outcome.message
    assert str(folder / "log.txt") in outcome.message


@pytest.mark.slow
async def test_a_wrong_token_is_one_line_and_the_right_one_is_let_in(
    asked: Asked, tmp_path: Path, joined: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong").write_text("f" * 32)
    async with running(tmp_path) as pool:
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "wrong"))
        state, outcome = await finished(pool, pool.submit(for_ray(asked("sleep"), joined)))
        assert (state, outcome.error) == ("failed", "user"), outcome
        assert "pool.ray_address and the token" in outcome.message
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", joined.variables["RAY_AUTH_TOKEN_PATH"])
        assert (await finished(pool, pool.submit(for_ray(asked("sleep"), joined))))[0] == "succeeded"


@pytest.mark.slow
async def test_a_server_that_goes_takes_its_job_off_the_node(
    asked: Asked, tmp_path: Path, joined: Ray, eventually: Any
) -> None:
    async with running(tmp_path) as pool:
        job = pool.submit(for_ray(asked("daemon"), joined))
        await working(pool, job)
        eventually(joined.strays)
    row = pool.index.get(job)
    assert row is not None
    assert row.state == "interrupted"
    eventually(lambda: not joined.strays())


@pytest.mark.slow
async def test_a_real_measure_on_a_node_comes_back_whole(tmp_path: Path, joined: Ray) -> None:
    """The worker itself: transformers on both sides, one layer."""
    from samebits.tools.schema.artifacts.gap import GapReport
    from samebits.tools.sides.transformers.tiny import write_tiny
    from samebits.tools.store import artifact

    model = write_tiny(tmp_path / "model", dtype="float32", num_hidden_layers=1)
    experiment = {
        "device": "cpu",
        "rollout": {"side": "transformers", "model": str(model), "dtype": "float32"},
        "trainer": {"dtype": "float32"},
        "workload": {"prompts": 2, "prompt_tokens": (3, 8), "new_tokens": 4},
        "pool": {"backend": "ray", "ray_address": joined.address},
    }
    async with running(tmp_path) as pool:
        job = pool.submit(MeasureRequest.model_validate({"experiment": experiment, "axes": ()}))
        state, outcome = await finished(pool, job)
        folder = pool.index.folder(job)
    assert state == "succeeded", outcome
    assert str(joined.node) not in outcome.model_dump_json()
    for name in outcome.result.ids.values():
        assert json.loads((folder / name / "manifest.json").read_text())["files"]
    artifact.read(folder / outcome.result.ids["gap"], GapReport)  # every digest is checked
    assert [path.name for path in (joined.node / "work").iterdir() if path.name.startswith(job)] == []


async def test_a_node_that_dies_in_mid_job_is_one_clear_failure_and_the_other_node_goes_on(
    asked: Asked, tmp_path: Path, joined: Ray, eventually: Any
) -> None:
    """Last, as the cluster has one node less afterwards."""
    async with running(tmp_path) as pool:
        job = pool.submit(for_ray(asked("daemon"), joined))
        await working(pool, job)
        eventually(joined.strays)
        joined.kill_a_node()
        state, outcome = await finished(pool, job)
        assert state == "failed"
        assert isinstance(outcome, Failed)
        assert outcome.error == "node_lost"
        assert outcome.message.startswith("node lost: ")
        assert outcome.message.endswith("Next: run it anew")
        left = {path.name for path in pool.index.folder(job).iterdir()}
        about = ["request.json", "ray.json", "started", "worker.json", "events.jsonl", "log.txt"]
        assert left == {*about, "result.json", "ended.json"}
        events = (pool.index.folder(job) / "events.jsonl").read_text()
        assert events.count('"phase":"stand-in"') + events.count('"phase": "stand-in"') == 1, "not tried again"
        eventually(lambda: not joined.strays())
        after = pool.submit(for_ray(asked("sleep"), joined, device="cpu"))
        assert (await finished(pool, after))[0] == "succeeded"
