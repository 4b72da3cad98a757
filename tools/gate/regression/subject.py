"""What a gate is about: the settings of both sides, their weights, and what the bits of each process depend on."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.kernels.adapters.setup import machine, proved
from samebits.tools.job.job import device_of
from samebits.tools.sides.environment import variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from samebits.tools.schema.experiment import Experiment

CAPABILITY = "ATEN_CPU_CAPABILITY"
WEIGHTS = (".safetensors", ".json", ".bin")


def fingerprints(experiment: Experiment) -> dict[str, dict[str, str]]:
    """By role, what the adapters compare at start-up, for the environment of that side."""
    device = device_of(experiment)
    found = {}
    for role, config in (("rollout", experiment.rollout), ("trainer", experiment.trainer)):
        env = variables(config, device) | dict(config.env)
        if env.get(CAPABILITY) == os.environ.get(CAPABILITY):
            found[role] = proved.fingerprint(role, env)
        else:
            # torch reads it once, at its import.
            command = [sys.executable, "-m", proved.__name__, role]
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, text=True)
            found[role] = json.loads(done.stdout.splitlines()[-1])
    return found


def subject(experiment: Experiment, prints: Mapping[str, Mapping[str, str]]) -> str:
    """sha256 over the settings of the sides and the workload, the model folders' files, and the fingerprints."""
    sections = {name: getattr(experiment, name).model_dump(mode="json") for name in ("rollout", "trainer", "workload")}
    # Where a model lies changes nothing; what lies there is in the digests.
    for name in ("rollout", "trainer"):
        sections[name].pop("model")
        env = sections[name]["env"]
        sections[name]["env"] = {key: value for key, value in env.items() if not machine.silent(key)}
    text = {
        "device": device_of(experiment),
        "sections": sections,
        "models": {
            str(index): _files(Path(model))
            for index, model in enumerate((experiment.rollout.model, experiment.trainer_model))
        },
        "prints": {role: dict(values) for role, values in prints.items()},
    }
    return hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()


def _files(folder: Path) -> dict[str, str]:
    if not folder.name or not folder.is_dir():
        return {}
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in WEIGHTS and path.is_file():
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
