"""The `samebits` command: one subcommand per verb. No torch is imported here; work runs in a worker process."""

from __future__ import annotations

import json
import os
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer

from samebits.server.cli import collect, gate, guarded, jobs, pool, propose, review, rl, serve, skill, whole
from samebits.server.cli.common import (
    HERE,
    Config,
    Device,
    Json,
    Out,
    RolloutFile,
    Sets,
    Verb,
    absolute,
    artifact,
    execute,
)
from samebits.tools.schema import reader
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment
from samebits.tools.schema.requests import (
    BuildRequest,
    CaptureRequest,
    DemoRequest,
    DiffRequest,
    InspectRequest,
    MeasureRequest,
    MinimizeRequest,
)

app = typer.Typer(
    name="samebits",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Bring the logprob difference between an RL trainer and vLLM to exactly zero, and keep it there.\n\n"
    "Exit codes: 0 equal or done, 1 differs, 2 could not judge or run.",
)


@app.command()
def init(
    model: Annotated[str, typer.Option(help="Model folder to write into the file.")] = "MODEL",
    path: Annotated[Path, typer.Option(help="File to write.")] = Path(reader.NAME),
) -> None:
    """Write a commented samebits.toml."""
    if path.is_dir():
        raise UserError(f"--path {path}", "a folder, not a file", f"name the file: --path {path / reader.NAME}")
    if path.exists():
        raise UserError(
            str(path), "exists already", "edit it, or remove it and run `samebits init` again, or give another --path"
        )
    # Paths in the file are taken from its own folder.
    value = os.path.relpath(model, path.parent) if Path(model).exists() else model
    text = reader.TEMPLATE.read_text(encoding="utf-8").replace('"MODEL"', json.dumps(value))
    try:
        whole.write(path, text)
    except OSError as error:
        step = "give another --path" if path.parent.is_dir() else "make its folder, or give another --path"
        raise UserError(str(path), f"cannot be written ({error.strerror})", step) from error
    print(f"wrote {path}. Next: {_after_init(model)}")


def _after_init(model: str) -> str:
    if Path(model).is_dir():
        return "`samebits inspect`"
    if model == "MODEL":
        return "set rollout.model, then `samebits inspect`"
    return f"there is no folder {model} here: put the model there, or correct rollout.model; then `samebits inspect`"


@app.command()
def inspect(config: Config = HERE, sets: Sets = None, out: Out = None, as_json: Json = False) -> None:
    """Say what is installed here and whether this experiment can run."""
    experiment = reader.read(config, tuple(sets or ()))
    execute(InspectRequest(experiment=experiment), out, as_json)


@app.command()
def measure(
    config: Config = HERE,
    sets: Sets = None,
    rollout: RolloutFile = None,
    out: Out = None,
    as_json: Json = False,
    axes: Annotated[
        str | None, typer.Option(help="Comma-separated self-consistency axes; empty: none (default: all).")
    ] = None,
) -> None:
    """Measure the gap: rollout, recompute, max, mean, std and k3; rule out data and meaning; each side against
    itself."""
    experiment = reader.read(config, tuple(sets or ()))
    chosen = None if axes is None else tuple(name for name in axes.split(",") if name)
    request = MeasureRequest(experiment=experiment, rollout=absolute(rollout), axes=chosen)
    execute(request, out, as_json)


@app.command()
def capture(
    side: Annotated[str, typer.Argument(help="rollout or trainer.")],
    config: Config = HERE,
    sets: Sets = None,
    rollout: RolloutFile = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Record activations of one side over a rollout."""
    experiment = reader.read(config, tuple(sets or ()))
    if side not in ("rollout", "trainer"):
        raise UserError(
            f"side {side!r}", "not one of the two", "say `samebits capture rollout` or `samebits capture trainer`"
        )
    request = CaptureRequest.model_validate({"experiment": experiment, "side": side, "rollout": absolute(rollout)})
    execute(request, out, as_json)


@app.command()
def diff(
    config: Config = HERE,
    sets: Sets = None,
    rollout: RolloutFile = None,
    out: Out = None,
    as_json: Json = False,
    against: Annotated[
        str,
        typer.Option(
            help="trainer, or the rollout side itself: repeat, batch, decode_prefill, chunked_prefill, prefix_hit."
        ),
    ] = "trainer",
    max_operators: Annotated[int, typer.Option(help="Prove up to this many one by one; the rest in a few steps.")] = 64,
) -> None:
    """Name, prove and order every operator that differs by itself."""
    experiment = reader.read(config, tuple(sets or ()))
    request = DiffRequest.model_validate(
        {"experiment": experiment, "rollout": absolute(rollout), "against": against, "max_operators": max_operators}
    )
    execute(request, out, as_json)


@app.command()
def minimize(
    divergence: Annotated[Path, typer.Argument(help="What `samebits diff` made: its artifact, job folder or job id.")],
    operator: Annotated[
        int | None, typer.Option(help="Index in its work list (default: the first that can be cut out).")
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Cut one differing operator out into a folder with repro.py that runs by itself."""
    request = MinimizeRequest(divergence=str(artifact(divergence, "divergence")), operator=operator)
    execute(request, out, as_json)


@app.command()
def build(
    candidate: Annotated[str, typer.Argument(help="Candidate folder, or the name of a library operator.")],
    device: Device = "auto",
    timing: Annotated[bool, typer.Option(help="Time it when every other leg is green.")] = True,
    sandbox: Annotated[
        str | None, typer.Option(help="auto, or required: an error without one (default: [gate] sandbox).")
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Build a candidate kernel and put it through the gate for candidates."""
    if not candidate.strip():
        raise UserError(f"candidate {candidate!r}", "names nothing", "give a folder with candidate.toml")
    named = str(Path(candidate).resolve()) if Path(candidate).is_dir() else candidate
    if sandbox not in (None, "auto", "required"):
        raise UserError(f"--sandbox {sandbox}", "not one of the two", "say auto or required")
    # What the file requires, a flag does not take back.
    experiment = reader.read(Path()) if Path(reader.NAME).is_file() else Experiment()
    required = "required" in (sandbox, experiment.gate.sandbox)
    chosen = {"candidate": named, "device": device, "timing": timing, "sandbox": "required" if required else "auto"}
    limit = {"memory_limit_mib": experiment.pool.memory_limit_mib}
    execute(BuildRequest.model_validate(chosen | limit), out, as_json)


@app.command()
def demo(
    device: Device = "auto",
    gpu: Annotated[bool, typer.Option("--gpu", help="The same as --device cuda.")] = False,
    family: Annotated[str, typer.Option(help="qwen3 or llama.")] = "qwen3",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The whole story on a tiny model against real vLLM, each number live."""
    request = DemoRequest.model_validate({"device": "cuda" if gpu else device, "family": family})
    execute(request, out, as_json)


app.command()(serve.serve)
app.command()(gate.gate)
app.command()(rl.rl)
app.command()(propose.propose)
app.command()(review.review)
app.command()(propose.apply)
app.add_typer(jobs.app, name="jobs")
app.add_typer(pool.app, name="pool")
app.command()(collect.gc)
app.add_typer(skill.app, name="skill")


@app.command()
def version() -> None:
    """Print the version."""
    print(installed_version("samebits"))


for command in app.registered_commands:
    command.cls = Verb


def main() -> None:
    """Entry point: a user's mistake is one line on stderr and exit code 2."""
    guarded.run(app)


if __name__ == "__main__":
    main()
