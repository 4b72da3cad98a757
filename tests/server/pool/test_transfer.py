"""What passes between here and a node. The node is the real one, called without Ray in between; faults are planted."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from samebits.server.pool import content, transfer
from samebits.server.pool.content import Damaged, File, Store
from samebits.server.pool.inputs import named, renamed
from samebits.server.pool.ray_node import Node


class Direct:
    """A Remote whose node is an object here.

    Args:
        disturb: what becomes of the bytes that come back from `read`.
    """

    def __init__(self, node: Node, disturb: Any = None) -> None:
        self.node = node
        self.disturb = disturb
        self.calls: list[str] = []

    def call(self, method: str, *arguments: Any) -> Any:
        self.calls.append(method)
        answer = getattr(self.node, method)(*arguments)
        return self.disturb(answer) if method == "read" and self.disturb else answer


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("SAMEBITS_NODE", str(tmp_path / "node"))
    return Node("job", 0)


@pytest.fixture
def done(node: Node) -> Node:
    """A node whose job made an artifact of two pieces, and a link out."""
    artifact = node.job / "gap"
    artifact.mkdir(parents=True)
    (artifact / "tensors").write_bytes(os.urandom(content.CHUNK + 10))
    digest = content.digest(artifact / "tensors")
    (artifact / "manifest.json").write_text(json.dumps({"kind": "gap", "files": {"tensors": digest}}))
    (node.job / "result.json").write_text("{}")
    (node.job / "out").symlink_to("/etc")
    return node


def experiment(model: Path, **more: Any) -> dict[str, Any]:
    rollout = {"model": str(model), "side": "vllm", "kernels": "none"}
    return {"experiment": {"rollout": rollout, "trainer": rollout | more, "workload": {"file": ""}}}


def test_what_the_job_made_comes_back_whole(done: Node, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    assert sorted(transfer.fetch(Direct(done), here)) == ["gap/manifest.json", "gap/tensors"]
    assert (here / "gap" / "tensors").read_bytes() == (done.job / "gap" / "tensors").read_bytes()
    assert sorted(path.name for path in here.iterdir()) == ["gap"]


@pytest.mark.parametrize("place", [0, -1])
def test_one_wrong_bit_on_the_way_back_is_refused_and_nothing_is_kept(done: Node, tmp_path: Path, place: int) -> None:
    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[place] ^= 1
        return bytes(changed)

    here = tmp_path / "here"
    here.mkdir()
    with pytest.raises(Damaged, match=r"gap/manifest\.json: sha256 is"):
        transfer.fetch(Direct(done, flip), here)
    assert list(here.iterdir()) == []


def test_an_artifact_that_was_damaged_on_the_node_is_refused_by_its_own_manifest(done: Node, tmp_path: Path) -> None:
    with (done.job / "gap" / "tensors").open("r+b") as file:
        file.write(b"other")
    here = tmp_path / "here"
    here.mkdir()
    with pytest.raises(Damaged, match=r"gap/tensors: its bytes are not those which the artifact's manifest names"):
        transfer.fetch(Direct(done), here)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a/../../b", ".", ""])
def test_a_listing_that_leads_out_of_the_folder_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(Damaged):
        File(path, "0" * 64, 0).inside(tmp_path)


def test_inputs_are_sent_once_for_all_that_name_them_and_not_again_for_the_next_job(node: Node, tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "deep").mkdir(parents=True)
    (model / "a").write_bytes(b"same")
    (model / "deep" / "b").write_bytes(b"same")
    (tmp_path / "blob").write_bytes(b"linked")
    (model / "c").symlink_to(tmp_path / "blob")
    (model / ".git").mkdir()
    (model / ".git" / "config").write_text("not asked for")
    first = Direct(node)
    request = experiment(model)
    files, here = transfer.send_inputs(first, request, str(node.work))
    assert first.calls.count("seal") == 2
    assert sorted(file.path for file in files) == ["0/model/a", "0/model/c", "0/model/deep/b"]
    there = request["experiment"]["rollout"]["model"]
    assert there == request["experiment"]["trainer"]["model"] == f"{node.work}/inputs/0/model"
    assert here == {there: str(model)}
    second = Direct(Node("next", 0))
    transfer.send_inputs(second, experiment(model), str(second.node.work))
    assert second.calls == ["missing"]


def test_a_file_of_the_store_that_was_written_to_does_not_count_any_more(tmp_path: Path) -> None:
    store, data = Store(tmp_path / "store"), b"weights"
    sha256 = hashlib.sha256(data).hexdigest()
    part = store.begin(sha256)
    part.write_bytes(data)
    store.seal(part, sha256)
    assert store.has(sha256, len(data))
    store.path(sha256).chmod(0o600)
    store.path(sha256).write_bytes(b"WEIGHTS")
    assert not store.has(sha256, len(data))


def test_a_piece_that_went_wrong_on_the_way_there_is_refused(node: Node) -> None:
    sha256 = hashlib.sha256(b"right").hexdigest()
    node.receive(sha256, b"wrong")
    with pytest.raises(Damaged):
        node.seal(sha256)
    assert list(node.store.folder.iterdir()) == []


def test_every_key_that_names_a_path_is_found_and_renamed(tmp_path: Path) -> None:
    for name in ("model", "rows.jsonl", "kernel", "stored", "words"):
        (tmp_path / name).mkdir()
    request = experiment(tmp_path / "model", kernels=[str(tmp_path / "kernel")])
    request["experiment"]["rollout"] = request["experiment"]["rollout"] | {"side": f"file:{tmp_path}/rows.jsonl"}
    request["experiment"]["workload"]["file"] = str(tmp_path / "words")
    request |= {"rollout": str(tmp_path / "stored"), "candidate": "rms_norm", "divergence": str(tmp_path / "gone")}
    assert {path.name for path in named(request)} == {"model", "rows.jsonl", "kernel", "stored", "words"}
    text = json.dumps(renamed(request, {path: f"/there/{path.name}" for path in named(request)}))
    assert str(tmp_path) in text, "what is not there stays as it is"
    assert text.count(str(tmp_path)) == 1
    assert '"file:/there/rows.jsonl"' in text
    assert '"kernels": ["/there/kernel"]' in text


def test_paths_of_the_node_are_translated_the_longest_first() -> None:
    here = {"/n/job": "/p/jobs/1", "/n/inputs/0/model": "/models/m", "/n/inputs/0/model/deep": "/elsewhere"}
    text = "in /n/job/log.txt and /n/inputs/0/model/deep/x of /n/inputs/0/model"
    assert transfer.translated(text, here) == "in /p/jobs/1/log.txt and /elsewhere/x of /models/m"
