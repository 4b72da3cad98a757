"""Git's plumbing, with everything that could run foreign code or change bytes on the way switched off."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LIMIT_S = 120
QUIET = (
    "--no-pager",
    "--literal-pathspecs",
    "-c", "core.hooksPath=/dev/null",
    "-c", "core.fsmonitor=false",
    "-c", "core.quotePath=true",
    "-c", "apply.whitespace=nowarn",
    "-c", "apply.ignoreWhitespace=no",
    "-c", "gc.auto=0",
)  # fmt: skip
WHOLE = 1_000_000
"""Lines of context of a patch: whoever reviews it sees the whole file."""


class GitError(Exception):
    """A git command failed; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository. `extra` is added to the environment of every command."""

    top: Path
    extra: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, given: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
        """One command's standard output.

        Raises:
            GitError: it failed.
        """
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        fixed = {
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",  # a replaced commit would not be the one that was reviewed
            "LC_ALL": "C",
        }
        try:
            done = subprocess.run(
                ["git", *QUIET, *arguments],
                cwd=self.top,
                input=given,
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
                env=inherited | fixed | dict(self.extra) | dict(env or {}),
            )
        except FileNotFoundError as error:
            raise UserError("git", "not installed here", "install git") from error
        except subprocess.TimeoutExpired as error:
            raise GitError(f"git {arguments[0]} took longer than {LIMIT_S} s") from error
        if done.returncode != 0:
            raise GitError(done.stderr.decode(errors="replace").strip() or f"git {arguments[0]}: {done.returncode}")
        return done.stdout

    def line(self, *arguments: str, given: bytes = b"", env: Mapping[str, str] | None = None) -> str:
        """Output that is one line."""
        return self.run(*arguments, given=given, env=env).decode().strip()

    @contextmanager
    def scratch(self, *, keep_objects: bool = False) -> Iterator[Repository]:
        """The same repository with an index of its own and, unless `keep_objects`, a place of its own for new objects:
        neither the work tree nor the index nor, without `keep_objects`, anything below .git is written.
        """
        with tempfile.TemporaryDirectory(prefix="samebits-git-") as folder:
            extra = dict(self.extra) | {"GIT_INDEX_FILE": str(Path(folder, "index"))}
            if not keep_objects:
                objects = Path(folder, "objects")
                objects.mkdir()
                real = Path(self.top, self.line("rev-parse", "--git-path", "objects")).resolve()
                extra |= {"GIT_OBJECT_DIRECTORY": str(objects), "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(real)}
            yield Repository(self.top, extra)

    def blob(self, tree: str, path: str) -> tuple[str, bytes] | None:
        """Mode and bytes of a path in a tree; None when it is not there."""
        listed = self.run("ls-tree", "-z", "--full-tree", tree, "--", path)
        if not listed:
            return None
        head, _, _ = listed.partition(b"\t")
        mode, kind, oid = head.decode().split()
        return mode, self.run("cat-file", "blob", oid) if kind == "blob" else b""

    def with_files(self, tree: str, files: Mapping[str, tuple[str, bytes]]) -> str:
        """The tree with these files (path -> mode, bytes) put in. Call it on a `scratch` repository."""
        self.run("read-tree", tree)
        for path, (mode, data) in files.items():
            oid = self.line("hash-object", "-w", "--stdin", "--no-filters", given=data)
            self.run("update-index", "--add", "--cacheinfo", f"{mode},{oid},{path}")
        return self.line("write-tree")

    def patched(self, tree: str, patch: bytes) -> str:
        """The tree with a patch applied. Call it on a `scratch` repository."""
        self.run("read-tree", tree)
        self.run("apply", "--cached", "--whitespace=nowarn", "-", given=patch)
        return self.line("write-tree")

    def patch(self, before: str, after: str) -> bytes:
        """One tree against another, whole files, in a form no setting of the user changes."""
        return self.run(
            "diff-tree", "-r", "-p", "--full-index", "--text", "--no-ext-diff", "--no-textconv", "--no-renames",
            "--no-color", "--no-indent-heuristic", "--diff-algorithm=histogram", "--src-prefix=a/", "--dst-prefix=b/",
            "--inter-hunk-context=0", "-O/dev/null", f"--unified={WHOLE}", before, after,
        )  # fmt: skip

    def changed(self, before: str, after: str) -> set[str]:
        """Paths that differ between two trees."""
        names = self.run("diff-tree", "-r", "-z", "--no-renames", "--name-only", before, after)
        return {name.decode() for name in names.split(b"\0") if name}


def repository_of(folder: Path, what: str) -> Repository:
    """The repository a folder is in.

    Raises:
        UserError: none, or one without a work tree.
    """
    try:
        top = Repository(folder).line("rev-parse", "--show-toplevel")
    except (GitError, NotADirectoryError) as error:
        raise UserError(what, f"not in a git repository ({error})", "put it into the repository it is for") from error
    if not top:
        raise UserError(what, "its repository has no work tree", "use a checkout")
    return Repository(Path(top).resolve())


def inside(path: Path, roots: tuple[str, ...], what: str) -> None:
    """Refuse what lies outside the allowed folders.

    Raises:
        UserError: it does.
    """
    real = path.resolve()
    if roots and not any(real == Path(root) or Path(root) in real.parents for root in roots):
        raise UserError(
            f"{what} {path}",
            "outside the allowed folders",
            "have the person who runs the server add --root for the whole repository",
        )


def allowed(repository: Repository, roots: tuple[str, ...]) -> None:
    """Refuse a repository whose work tree or whose git folder lies outside the allowed folders."""
    inside(repository.top, roots, "the repository")
    common = repository.line("rev-parse", "--git-common-dir")
    inside(repository.top / common, roots, "the repository's git folder")
