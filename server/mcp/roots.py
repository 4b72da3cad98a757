"""Which paths a client may name: below the allowed roots after every link is followed, and nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from samebits.tools.schema.experiment import Experiment


@dataclass(frozen=True, slots=True)
class Roots:
    """Allowed folders; the first is the project."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, folders: tuple[Path, ...]) -> Roots:
        """From folders as given.

        Raises:
            UserError: one is not there.
        """
        for folder in folders:
            if not folder.is_dir():
                raise UserError(str(folder), "no such folder", "give --root a folder that is there")
        return cls(tuple(folder.resolve() for folder in folders))

    @property
    def project(self) -> Path:
        """Where relative paths start and jobs are kept."""
        return self.folders[0]

    def holds(self, path: Path) -> bool:
        """Whether a path, links followed, is inside."""
        real = path.resolve()
        return any(real == folder or folder in real.parents for folder in self.folders)

    def path(self, text: str, what: str, *, whole: bool = True) -> Path:
        """A path a client named, made absolute.

        Args:
            whole: a folder is read as a whole, so every link below it counts too, but not in hidden folders.

        Raises:
            UserError: it leaves the roots, by `..` or by a link, or a link below a folder does.
        """
        if "\0" in text:
            raise UserError(what, "holds a NUL character", "give a plain path")
        path = self.project / Path(text)
        if ".." in Path(text).parts or not self.holds(path):
            raise UserError(
                f"{what} {text!r}",
                "outside the allowed folders",
                f"name a path below {self._said()}, or have the person who runs the server add --root",
            )
        if whole and path.is_dir() and (link := self._way_out(path)) is not None:
            raise UserError(
                f"{what} {text!r}",
                f"its link {str(link)!r} leads outside the allowed folders",
                "have the person who runs the server add --root for its target",
            )
        return path.resolve()

    def _way_out(self, folder: Path) -> Path | None:
        """The first link below a folder, from it, that leaves the roots; links to folders inside are followed."""
        seen: set[str] = set()
        for place, folders, names in os.walk(folder, followlinks=True):
            real = os.path.realpath(place)
            folders[:] = sorted(name for name in folders if name[0] != "." and real not in seen)
            if real in seen:
                continue
            seen.add(real)
            for name in [*folders, *sorted(names)]:
                path = Path(place, name)
                if path.is_symlink() and not self.holds(path):
                    return path.relative_to(folder)
        return None

    def check(self, experiment: Experiment, python: str) -> None:
        """Every path an experiment names.

        Args:
            python: the interpreter the server was started with (--worker-python), allowed wherever it is.

        Raises:
            UserError: one leaves the roots.
        """
        named = {
            "rollout.model": experiment.rollout.model,
            "trainer.model": experiment.trainer.model,
            "workload.file": experiment.workload.file,
        }
        if experiment.rollout.side.startswith("file:"):
            named["rollout.side"] = experiment.rollout.side.removeprefix("file:")
        for section, kernels in (("rollout", experiment.rollout.kernels), ("trainer", experiment.trainer.kernels)):
            if not isinstance(kernels, str):
                named |= {f"{section}.kernels[{place}]": text for place, text in enumerate(kernels)}
        for key, text in named.items():
            if text:
                self.path(text, key)
        wanted = experiment.pool.worker_python
        if wanted and wanted != python and not self.holds(Path(wanted).parent):
            raise UserError(
                f"pool.worker_python {wanted!r}",
                "outside the allowed folders",
                "have the person who runs the server give --worker-python",
            )
        address = experiment.pool.ray_address
        if address and address != os.environ.get("RAY_ADDRESS"):
            # Models and Ray's token would go there.
            raise UserError(
                f"pool.ray_address {address!r}",
                "is not the cluster of this server",
                "leave it out, or have the person who runs the server start it with RAY_ADDRESS set to it",
            )

    def _said(self) -> str:
        return " or ".join(str(folder) for folder in self.folders)
