"""What passes between a job folder here and a node: inputs there, progress and artifacts back."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from samebits.server.pool.content import CHUNK, Damaged, File, Store, describe, listing
from samebits.server.pool.inputs import named, renamed
from samebits.tools.schema.results import OUTCOME, Succeeded

if TYPE_CHECKING:
    from samebits.tools.schema.results import Outcome


class Remote(Protocol):
    """The methods of a Node, called where it is."""

    def call(self, method: str, *arguments: Any) -> Any:
        """The method's answer, or its exception."""


def send_inputs(remote: Remote, request: dict[str, Any], work: str) -> tuple[list[File], dict[str, str]]:
    """Bring what the request names to the node, as far as its store lacks it; the request then names it there.

    Returns:
        The listing below `work`/inputs, and the path here of each path there.

    Raises:
        Damaged: a file changed while it was sent.
    """
    files: list[File] = []
    sources: dict[str, Path] = {}
    there: dict[Path, str] = {}
    for number, path in enumerate(named(request)):
        for file in listing(path, follow=True):
            source = path / file.path if path.is_dir() else path
            name = f"{number}/{path.name}/{file.path}" if path.is_dir() else f"{number}/{file.path}"
            files.append(File(name, file.sha256, file.size, file.executable))
            sources[file.sha256] = source
        there[path] = f"{work}/inputs/{number}/{path.name}"
    for sha256 in remote.call("missing", [(file.sha256, file.size) for file in files]):
        with sources[sha256].open("rb") as opened:
            while data := opened.read(CHUNK):
                remote.call("receive", sha256, data)
        remote.call("seal", sha256)
    renamed(request, there)
    return files, {name: str(path) for path, name in there.items()}


class Progress:
    """Events and log of the remote job, as they come."""

    def __init__(self, folder: Path, here: dict[str, str]) -> None:
        self.folder = folder
        self.here = here
        self.events = self.log = 0

    def take(self, remote: Remote) -> Outcome | None:
        """Fetch what is new; the outcome once it has ended and all was fetched."""
        found = remote.call("poll", self.events, self.log)
        whole = found["events"][: found["events"].rfind(b"\n") + 1]
        self.events += len(whole) if found["outcome"] is None else 0
        self.log = found["log_from"] + len(found["log"])
        if whole:
            with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
                file.write(translated(whole.decode(errors="replace"), self.here))
        if found["log"]:
            # Standard output is the job's log, by way of its warden.
            os.write(1, translated(found["log"].decode(errors="replace"), self.here).encode())
        return None if found["outcome"] is None else outcome_here(found["outcome"], self.folder, self.here)


def translated(text: str, here: dict[str, str]) -> str:
    """Text with the paths of the node as those of this machine."""
    for there in sorted(here, key=len, reverse=True):
        text = text.replace(there, here[there])
    return text


def outcome_here(written: bytes, folder: Path, here: dict[str, str]) -> Outcome:
    """The outcome as it would be had the job run here: `ids` relative to the folder, other paths this machine's."""
    outcome = OUTCOME.validate_json(written)
    job = next(there for there, own in here.items() if own == str(folder))
    if isinstance(outcome, Succeeded):
        ids = {}
        for name, path in outcome.result.ids.items():
            there = os.path.normpath(os.path.join(job, path))
            ids[name] = path if there.startswith(job + "/") else os.path.relpath(translated(there, here), folder)
        outcome = Succeeded(result=outcome.result.model_copy(update={"ids": ids}))
    return OUTCOME.validate_json(translated(outcome.model_dump_json(), here))


def fetch(remote: Remote, folder: Path) -> list[str]:
    """Bring what the job made into its folder, all of it or nothing; returns the paths.

    Raises:
        Damaged: bytes that came are not those which the node listed, or not those which an artifact's manifest names.
    """
    incoming = folder / ".incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    try:
        store, tree = Store(incoming / "store"), incoming / "tree"
        tree.mkdir()
        files: list[File] = remote.call("made")
        for file in files:
            if not store.has(file.sha256, file.size):
                _receive(remote, file, store)
            store.place(file, tree)
            file.inside(tree).chmod(0o700 if file.executable else 0o600)
        check_manifests(tree)
        for file in files:
            target = file.inside(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
        for file in sorted(files, key=lambda file: Path(file.path).name == "manifest.json"):
            # An artifact is there once its manifest is.
            file.inside(tree).replace(file.inside(folder))
        return [file.path for file in files]
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


def _receive(remote: Remote, file: File, store: Store) -> None:
    part = store.begin(file.sha256)
    with part.open("wb") as opened:
        for offset in range(0, file.size, CHUNK):
            opened.write(remote.call("read", file.path, offset, CHUNK))
    try:
        store.seal(part, file.sha256)
    except Damaged as error:
        raise Damaged(f"{file.path}: {error}") from error


def check_manifests(tree: Path) -> None:
    """Every artifact's files are those its manifest names.

    Raises:
        Damaged: one is missing or another.
    """
    for path in tree.rglob("manifest.json"):
        try:
            files = json.loads(path.read_bytes()).get("files", {})
            pairs = [(path.parent / name, sha256) for name, sha256 in files.items()]
        except (ValueError, AttributeError):
            continue  # no artifact of ours
        for file, sha256 in pairs:
            name = file.relative_to(tree)
            if not file.is_file() or describe(file, str(name)).sha256 != sha256:
                raise Damaged(f"{name}: its bytes are not those which the artifact's manifest names")
