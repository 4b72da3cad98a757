"""What a proposal changes: the candidate's two files and the `kernels` line, against the commit that is checked out."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.kernels.candidate import unclaimed
from samebits.tools.propose.git import GitError, Repository, repository_of
from samebits.tools.propose.kernels_line import parsed, with_candidate
from samebits.tools.schema.artifacts.proposal import ProposedFile
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Rollout, Trainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samebits.kernels.candidate import Candidate

LARGEST_BYTES = 1 << 19
PLAIN = re.compile(r"[A-Za-z0-9._@+-]+(/[A-Za-z0-9._@+-]+)*")
"""Paths that a patch names without quoting."""
ORDINARY = "100644"


@dataclass(frozen=True, slots=True)
class Change:
    """A patch and what it is between."""

    repository: Repository
    base: str
    base_subject: str
    base_tree: str
    tree: str
    patch: bytes
    files: tuple[ProposedFile, ...]
    folder: str
    config: str
    left_out: tuple[str, ...]


def change_of(candidate: Candidate, config: Path, sides: Sequence[str]) -> Change:
    """The change that puts a candidate into its repository.

    Raises:
        UserError: no repository, two of them, uncommitted changes of other files, a path or a file that cannot be part
        of a patch, nothing to change.
    """
    folder = Path(os.path.abspath(candidate.folder))
    repository = repository_of(folder, f"candidate {folder}")
    if repository_of(config.parent, str(config)).top != repository.top:
        raise UserError(
            str(config), f"in another repository than the candidate {folder}", "keep both in one repository"
        )
    names = [place(repository, path) for path in (folder / "candidate.toml", folder / candidate.source.name, config)]
    base, subject, base_tree = base_of(repository)
    files = {name: read(repository.top / name) for name in names[:2]}
    if digest_of([*files.values()]) != candidate.digest:
        raise UserError(str(folder), "changed while it was read", "propose again")
    committed = repository.blob(base, names[2])
    if committed is None:
        raise UserError(str(config), "not committed", "commit it first: the proposal changes its `kernels` line")
    check_sides(text_of(committed[1], config), sides, names[2])
    check_claims(text_of(committed[1], config), sides, candidate, names[2])
    named = os.path.relpath(folder, config.parent)
    files[names[2]] = with_candidate(text_of(committed[1], config), sides, named, names[2]).encode()
    check_clean(repository, {name: (base, files[name]) for name in names})
    placed: dict[str, tuple[str, bytes]] = {}
    listed: list[ProposedFile] = []
    for name, data in files.items():
        text_of(data, repository.top / name)
        old = repository.blob(base, name)
        if old is not None and old[0] not in (ORDINARY, "100755"):
            raise UserError(name, "a link or a submodule at the base commit", "use another folder")
        placed[name] = (old[0] if old else ORDINARY, data)
        if old is None or old[1] != data:
            listed.append(
                ProposedFile(
                    path=name,
                    change="added" if old is None else "changed",
                    before=sha256(old[1]) if old else "",
                    after=sha256(data),
                )
            )
    if not listed:
        raise UserError(str(folder), "committed already, as it is, and named by samebits.toml", "nothing to propose")
    with repository.scratch() as scratch:
        tree = scratch.with_files(base_tree, placed)
        patch = scratch.patch(base_tree, tree)
    return Change(
        repository, base, subject, base_tree, tree, patch, tuple(listed),
        os.path.dirname(names[0]), names[2], others(folder, candidate.source.name),
    )  # fmt: skip


def check_sides(text: str, sides: Sequence[str], what: str) -> None:
    """Refuse what the sides would refuse at start-up (tools/sides/vllm/kernels.py).

    Raises:
        UserError: a candidate under a vLLM side.
    """
    rollout = parsed(text, what).get("rollout", {})
    if "rollout" in sides and isinstance(rollout, dict) and rollout.get("side", "vllm") == "vllm":
        raise UserError(
            f"{what}: rollout.kernels",
            "a vLLM side takes no candidate folder",
            'name the trainer alone (sides trainer); its candidate has the bits of rollout.kernels = "samebits"',
        )


def check_claims(text: str, sides: Sequence[str], candidate: Candidate, what: str) -> None:
    """Refuse a candidate that the patch engine would refuse at start-up (kernels/adapters/tables/candidates.py).

    Raises:
        UserError: it does not claim a side's dtype, or the device that the file names.
    """
    raw = parsed(text, what)
    device = raw.get("device", "auto")
    for side in sides:
        section = raw.get(side, {})
        dtype = section.get("dtype") if isinstance(section, dict) else None
        default = (Rollout if side == "rollout" else Trainer).model_fields["dtype"].default
        if why := unclaimed(candidate, str(dtype or default), "" if device == "auto" else str(device)):
            raise UserError(
                f"{what}: {side}.kernels",
                f"candidate {candidate.name} {why[0]}, {why[1]}",
                "build it for what the side has, or commit another value first",
            )


def base_of(repository: Repository) -> tuple[str, str, str]:
    """Commit that is checked out, the first line of its message, its tree.

    Raises:
        UserError: there is none yet.
    """
    try:
        base = repository.line("rev-parse", "--verify", "HEAD^{commit}")
    except GitError as error:
        raise UserError(str(repository.top), "has no commit yet", "commit what is there first") from error
    subject = repository.run("log", "-1", "--format=%s", base).decode(errors="replace").strip()[:200]
    return base, subject, repository.line("rev-parse", f"{base}^{{tree}}")


def place(repository: Repository, path: Path) -> str:
    """A file's path from the top, every part of it a plain folder or file.

    Raises:
        UserError: outside the work tree, through a link, inside .git, or with characters a patch would quote.
    """
    top, full = repository.top, Path(os.path.abspath(path))
    above = [folder for folder in full.parents if folder.resolve() == top]
    if not above:
        raise UserError(str(path), f"outside the repository {top}, or behind a link", "use plain folders inside it")
    name, at, mode = full.relative_to(above[-1]).as_posix(), top, 0
    for part in name.split("/"):
        at = at / part
        try:
            mode = os.lstat(at).st_mode
        except OSError as error:
            raise UserError(str(at), error.strerror or str(error), "check the path") from error
        if stat.S_ISLNK(mode):
            raise UserError(str(at), "a symbolic link", "put the file or folder itself there")
    if not stat.S_ISREG(mode):
        raise UserError(str(at), "not a plain file", "put a plain file there")
    if not PLAIN.fullmatch(name) or ".git" in name.lower().split("/"):
        reason = "has characters that a patch cannot hold plainly, or leads into .git"
        raise UserError(f"path {name!r}", reason, "use letters, digits, '.', '_', '@', '+' and '-'")
    return name


def check_clean(repository: Repository, ours: dict[str, tuple[str, bytes]]) -> None:
    """Refuse uncommitted changes of anything but the proposal's own files as the proposal has them.

    Raises:
        UserError: there are some: what was measured then is not what is proposed.
    """
    listed = repository.run("status", "--porcelain=v1", "-z", "--untracked-files=no", "--no-renames")
    dirty = []
    for entry in listed.decode(errors="replace").split("\0"):
        name = entry[3:]
        if not entry:
            continue
        if name in ours and (repository.top / name).is_file() and read(repository.top / name) == ours[name][1]:
            continue
        dirty.append(name)
    if dirty:
        shown = ", ".join(dirty[:5]) + (f" and {len(dirty) - 5} more" if len(dirty) > 5 else "")
        raise UserError(
            str(repository.top),
            f"has uncommitted changes ({shown}): what was measured with them is not what would be proposed",
            "commit them, or put them back, then measure, build and propose again",
        )


def read(path: Path) -> bytes:
    """Bytes of a plain file.

    Raises:
        UserError: a link, too large, or not to be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise UserError(str(path), f"cannot be read ({error.strerror})", "put a plain file there") from error
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise UserError(str(path), f"over {LARGEST_BYTES:,} bytes", "nobody can review that; make it smaller")
    return data


def text_of(data: bytes, path: Path) -> str:
    """UTF-8 text without NUL.

    Raises:
        UserError: it is not.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(str(path), f"not UTF-8 text: {error.reason}", "save it as UTF-8") from error
    if "\0" in text:
        raise UserError(str(path), "holds a NUL character", "a person must be able to read it")
    return text


def digest_of(contents: list[bytes]) -> str:
    """The candidate's digest over candidate.toml and source (kernels/candidate.py), of bytes in hand."""
    total = hashlib.sha256()
    for data in contents:
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def sha256(data: bytes) -> str:
    """Hex."""
    return hashlib.sha256(data).hexdigest()


def others(folder: Path, source: str) -> tuple[str, ...]:
    """What else lies in the candidate's folder."""
    known = {"candidate.toml", source, "__pycache__"}
    return tuple(sorted(path.name for path in folder.iterdir() if path.name not in known))[:50]
