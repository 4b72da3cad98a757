"""Files by what they hold: listings with sha256, a store of such files, and their way in and out, piece by piece.

The same code stands on both sides of a Ray job: on the node for its inputs, here for its artifacts. A file counts only
once its bytes have the digest that was named for it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 8 << 20
SEALED_NS = 10**18
"""Time of change of every file of a store. One that was written to since has another, and does not count."""
KEEP_S = 14 * 86400.0


class Damaged(Exception):
    """Bytes that are not those which were named."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a listing."""

    path: str
    """Relative, with slashes."""
    sha256: str
    size: int
    executable: bool = False

    def inside(self, folder: Path) -> Path:
        """Where it belongs below a folder.

        Raises:
            Damaged: it would leave it.
        """
        parts = PurePosixPath(self.path).parts
        if not parts or self.path.startswith("/") or any(part in ("", ".", "..") for part in parts):
            raise Damaged(f"{self.path!r} is no path below a folder")
        return folder.joinpath(*parts)


def digest(path: Path) -> str:
    """Hex sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listing(root: Path, *, follow: bool) -> list[File]:
    """Every regular file below a folder, or the file itself, with its digest; hidden ones are left out.

    Args:
        follow: links to files count as what they lead to; else they are left out.
    """
    return [describe(path, name) for name, path in _walk(root, follow)]


def describe(path: Path, name: str) -> File:
    """One file as an entry of a listing."""
    found = path.stat()
    return File(name, digest(path), found.st_size, bool(found.st_mode & 0o100))


def _walk(root: Path, follow: bool) -> Iterator[tuple[str, Path]]:
    if root.is_file():
        yield root.name, root
        return
    for place, folders, names in os.walk(root, followlinks=follow):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        for name in sorted(names):
            path = Path(place, name)
            if name[0] != "." and path.is_file() and (follow or not path.is_symlink()):
                yield path.relative_to(root).as_posix(), path


class Store:
    """A folder of files named by their sha256."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, sha256: str) -> Path:
        """Where a file is or will be."""
        assert len(sha256) == 64
        assert sha256.isalnum()
        return self.folder / sha256

    def has(self, sha256: str, size: int) -> bool:
        """Whether it is here, as it was when it was sealed."""
        try:
            found = self.path(sha256).stat()
        except OSError:
            return False
        if found.st_size != size or found.st_mtime_ns != SEALED_NS:
            return False
        os.utime(self.path(sha256), ns=(time.time_ns(), SEALED_NS))
        return True

    def begin(self, sha256: str) -> Path:
        """A file to write the pieces into."""
        return self.folder / f".{sha256}.{secrets.token_hex(4)}"

    def seal(self, part: Path, sha256: str) -> None:
        """Take a written file in.

        Raises:
            Damaged: its bytes are others.
        """
        if (found := digest(part)) != sha256:
            part.unlink()
            raise Damaged(f"sha256 is {found[:12]}..., not {sha256[:12]}...")
        part.chmod(0o400)
        os.utime(part, ns=(time.time_ns(), SEALED_NS))
        part.replace(self.path(sha256))

    def place(self, file: File, folder: Path) -> None:
        """Put a file of the store where a listing has it: a link where the disk allows it, else a copy."""
        target = file.inside(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.executable:
            shutil.copyfile(self.path(file.sha256), target)
            target.chmod(0o700)
            return
        try:
            os.link(self.path(file.sha256), target)
        except OSError:
            shutil.copyfile(self.path(file.sha256), target)

    def collect(self) -> None:
        """Remove what no job has asked for in KEEP_S, and pieces of transfers that never ended."""
        for path in self.folder.iterdir():
            with suppress(OSError):
                if path.stat().st_atime < time.time() - KEEP_S:
                    path.unlink()
