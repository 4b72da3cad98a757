"""What the commands share: options, the way from a request to an exit code, how a job's artifact may be named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from samebits.server.cli import again, show
from samebits.server.jobs import launch
from samebits.server.jobs.links import JOBS
from samebits.server.jobs.start import start
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from typing import NoReturn

    from samebits.tools.schema.requests import Request

Config = Annotated[
    Path,
    typer.Option(
        "--config", "-c", help="Experiment file, or the folder that holds samebits.toml.", callback=again.config
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override one key, e.g. --set rollout.dtype=float32. Repeatable.", callback=again.sets),
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Job folder to make (default: a new one under .samebits/jobs).")
]
Json = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON on stdout, nothing else.")]
RolloutFile = Annotated[
    Path | None,
    typer.Option("--rollout", help="A stored Rollout artifact, or JSONL/parquet rows from your own engine."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
HERE = Path()
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""What every mistake in the options is; typer gives only this one of them a name."""


class Verb(TyperCommand):
    """A command that says of an argument too many what it could have been meant as."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Options and arguments.

        Raises:
            UserError: an option or argument that this command does not take, or that it lacks.
        """
        ctx.allow_extra_args = True
        try:
            extra = super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            raise UserError(ctx.command_path, str(error), f"see `{ctx.command_path} --help`") from error
        if extra:
            file = Path(extra[0])
            named = file.suffix == ".toml" or file.is_dir()
            is_config = named and any(param.name == "config" for param in self.params)
            verb = f"samebits {ctx.info_name}"
            step = f"give it as --config {file}" if is_config else f"see `{verb} --help`"
            raise UserError(" ".join(extra), f"`{verb}` takes no such argument", step)
        return extra


def job_folder(request: Request, out: Path | None) -> Path:
    """The folder that was asked for, or a new one below the project's jobs."""
    return (out or launch.new_folder(JOBS, request.kind)).resolve()


def execute(request: Request, out: Path | None, as_json: bool) -> NoReturn:
    """Run one request to its end and exit with its code."""
    running = start(request, job_folder(request, out))
    outcome = show.follow(running, quiet=as_json)
    raise typer.Exit(show.finish(outcome, running, as_json=as_json))


def artifact(given: Path, name: str) -> Path:
    """The artifact itself, or the one in a job's folder, or in the job of that id, or JOB/NAME below the jobs."""
    for path in (given, given / name, JOBS / given, JOBS / given / name):
        if (path / "manifest.json").is_file():
            return path.resolve()
    return given.absolute()


def absolute(path: Path | None) -> str | None:
    """A path of the command line as a request holds it."""
    return None if path is None else str(path.resolve())
