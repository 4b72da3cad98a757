"""`samebits rl`: the small RL loop, its corrections and its stale policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from samebits.server.cli.common import Json, Out, Sets, execute
from samebits.tools.schema import reader
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment
from samebits.tools.schema.requests import RlRequest
from samebits.tools.schema.resumed import different, earlier_rl

TINY: dict[str, object] = {
    "rollout": {"max_model_len": 256, "engine": {"max_num_batched_tokens": 8192, "max_num_seqs": 256}},
    "trainer": {"layout": "packed", "micro_batch": 64, "logprob": "log_softmax"},
}
"""The experiment of --tiny, besides the family."""


def rl(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Experiment file, or its folder.")] = None,
    sets: Sets = None,
    tiny: Annotated[
        str, typer.Option(help="No experiment file: a tiny random model: qwen3, qwen3_tied, llama, qwen3_moe.")
    ] = "",
    corrections: Annotated[
        bool, typer.Option("--corrections", help="Measure every correction against the exact gradient.")
    ] = False,
    stale: Annotated[bool, typer.Option("--stale", help="Both arms at every lag of [rl] lags.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help='The same as --set device="cuda".')] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Job folder of a run that ended early: go on, as it was asked.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0, help="Wall time; then a checkpoint and a report of what ran. 0: no limit.")
    ] = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """A small RL loop: a stock arm and an exact one, which must be exact at every step."""
    if corrections and stale:
        raise UserError("--corrections and --stale", "are two different runs", "give one of them")
    overrides = (*(sets or ()), *(('device="cuda"',) if gpu else ()))
    what = "corrections" if corrections else "stale" if stale else ""
    if resume is not None:
        experiment, what = _resumed(resume, config, tiny, overrides, what)
    else:
        experiment = _tiny(tiny, overrides) if tiny else reader.read(config or Path(), overrides)
    asked = {
        "experiment": experiment,
        "what": what or "train",
        "resume": "" if resume is None else str(resume.resolve()),
        "seconds": seconds,
    }
    request = RlRequest.model_validate(asked)
    execute(request, out, as_json)


def _tiny(family: str, overrides: tuple[str, ...]) -> Experiment:
    return Experiment.model_validate(reader.overridden(TINY | {"rl": {"family": family}}, overrides))


def _resumed(
    folder: Path, config: Path | None, tiny: str, overrides: tuple[str, ...], what: str
) -> tuple[Experiment, str]:
    """What the earlier run was asked, and what of it may change.

    Raises:
        UserError: no run of this verb, or an option that was given says something else than the run has.
    """
    before = earlier_rl(folder)
    if what and what != before.what:
        raise UserError(f"--{what}", f"the run in {folder} is of another kind ({before.what})", "leave it out")
    if config is not None and not tiny:
        experiment = reader.read(config, overrides)
    else:
        settings = before.experiment.model_dump()
        if tiny:
            settings["rl"]["family"] = tiny
        experiment = Experiment.model_validate(reader.overridden(settings, overrides))
    if found := different(before.experiment, experiment):
        key, had, asked = found
        raise UserError(
            f"{key} = {json.dumps(asked)}",
            f"the run in {folder} has {json.dumps(had)}",
            "leave out what differs: --resume takes the settings from the folder",
        )
    return experiment, before.what
