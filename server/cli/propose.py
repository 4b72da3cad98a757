"""`samebits propose` and `samebits apply`: what is proposed, and what a person approved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.server.cli import show
from samebits.server.cli.common import HERE, Config, Json, Out, artifact, job_folder
from samebits.server.jobs import launch
from samebits.server.jobs.links import listed
from samebits.server.jobs.order import settings_of
from samebits.tools.schema import asked, reader
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import ApplyRequest, ProposeRequest

SIDES = {"both": ("rollout", "trainer"), "rollout": ("rollout",), "trainer": ("trainer",)}


def propose(
    candidate: Annotated[Path, typer.Argument(help="Candidate folder, inside your git repository.")],
    gate: Annotated[Path, typer.Option(help="What `samebits build` made of it: artifact, job folder or job id.")],
    repro: Annotated[
        Path | None, typer.Option(help="What `samebits minimize` made: the repro this kernel answers.")
    ] = None,
    config: Config = HERE,
    sides: Annotated[str, typer.Option(help="Whose kernels line names it: trainer, rollout or both.")] = "trainer",
    why: Annotated[str, typer.Option(help="A few words to the reviewer.")] = "",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Make a patch of a candidate that passed its gate, with its evidence, for a person to review."""
    if sides not in SIDES:
        raise UserError(f"--sides {sides}", "not a choice", "say trainer, rollout or both")
    request = ProposeRequest.model_validate(
        {
            "candidate": str(candidate.absolute()),
            "gate": str(artifact(gate, "candidate-gate")),
            "repro": str(artifact(repro, "repro")) if repro else "",
            "config": str(experiment_file(config)),
            "sides": SIDES[sides],
            "why": why,
            "sandbox": reader.read(Path()).gate.sandbox if Path(reader.NAME).is_file() else "auto",
        }
    )
    _execute(request, out, as_json)


def apply(
    proposal: Annotated[Path, typer.Argument(help="What `samebits propose` made: artifact, job folder or job id.")],
    patch: Annotated[str, typer.Option(help="Beginning of the sha256 of the patch that is meant.")] = "",
    to: Annotated[str, typer.Option(help="branch, or patch for a file in the job's folder.")] = "branch",
    branch: Annotated[str, typer.Option(help="Name of the new branch.")] = "",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Write what a person approved to a new branch or a patch file; never to the work tree."""
    request = ApplyRequest.model_validate(
        {"proposal": str(artifact(proposal, "proposal")), "patch": patch, "to": to, "branch": branch}
    )
    _execute(request, out, as_json)


def experiment_file(config: Path) -> Path:
    """samebits.toml itself, without following links: a linked one is refused later.

    Raises:
        UserError: there is none.
    """
    path = config / reader.NAME if config.is_dir() else config
    if not path.is_file():
        raise UserError(str(path), "no experiment file here", "run `samebits init`, or give --config")
    return path.absolute()


def _execute(request: ProposeRequest | ApplyRequest, out: Path | None, as_json: bool) -> None:
    asked.check(request)
    folder = job_folder(request, out)
    with listed(folder, alone=isinstance(request, ProposeRequest)):
        running = launch.start(request, folder, python=settings_of(request, Path()).worker_python)
    raise typer.Exit(show.finish(show.follow(running, quiet=as_json), running, as_json=as_json))
