"""What must be set, per device and table, for an engine and a trainer to compute the same bits.

Imports neither torch nor vLLM: the variables must be there before either is first used.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.setup import cpu_isa, cpu_pieces, machine
from samebits.kernels.adapters.vllm import switch

Values = Mapping[str, Any]


@dataclass(slots=True, frozen=True)
class Settings:
    """One way to run both sides."""

    variables: Mapping[str, str]
    """Environment of the processes of both sides."""
    arguments: Values
    """Keyword arguments of vllm.LLM that the bits depend on: another value is refused."""
    convenient: Values = field(default_factory=dict)
    """Keyword arguments that may be given otherwise."""
    usual: Mapping[str, str] = field(default_factory=dict)
    """Variables set only where they are not: no bit depends on them."""


STEADY = {"VLLM_CPU_ATTN_SPLIT_KV": "0", cpu_isa.VARIABLE: "AVX512_CORE_BF16", cpu_pieces.VARIABLE: "1"}
"""With these vLLM's CPU engine is equal to itself (docs/exact-zero.md)."""
# The engine stays in the process that made it: weights are pushed to it by reference, and one process is hooked.
_HERE = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
_EAGER: Values = {"enforce_eager": True, "logprobs_mode": "processed_logprobs"}
_CONVENIENT: Values = {"skip_tokenizer_init": True, "seed": 0}
SETTINGS: dict[tuple[str, str], Settings | str] = {
    ("cpu", "vllm"): Settings(
        _HERE | STEADY,
        _EAGER,
        _CONVENIENT,
        # Gibibytes; without it the engine asks for nearly all memory of the machine.
        {"VLLM_CPU_KVCACHE_SPACE": "1"},
    ),
    ("cuda", "vllm"): Settings(_HERE | {"VLLM_BATCH_INVARIANT": "1"}, _EAGER, _CONVENIENT),
    # A module with SETTINGS, of the adapter that puts the library's own operators under the engine.
    ("cuda", "samebits"): "samebits.kernels.adapters.vllm.options",
}
"""(device, table) -> settings, or the module that holds them."""
DEFAULT = {"cpu": "vllm", "cuda": "samebits"}


def find(device: str, kernels: str) -> tuple[str, str, Settings]:
    """Device and table with "auto" resolved, and their settings.

    Raises:
        PatchError: no such pair, or its adapter is not there.
    """
    if device == "auto":
        device = machine.device()
    if device not in DEFAULT:
        raise PatchError(f"device {device!r}", "not known", 'use "cpu", "cuda" or "auto"')
    kernels = DEFAULT[device] if kernels == "auto" else kernels
    found = SETTINGS.get((device, kernels))
    if found is None:
        known = ", ".join(f"{name} on {where}" for where, name in SETTINGS)
        raise PatchError(f"kernels {kernels!r} on {device}", "not known", f"use one of: {known}")
    if isinstance(found, str):
        try:
            found = importlib.import_module(found).SETTINGS
        except ImportError as error:
            raise PatchError(
                f"kernels {kernels!r} on {device}", f"cannot be loaded ({error})", 'use kernels="vllm"'
            ) from error
        assert isinstance(found, Settings)
    return device, kernels, found


def put(settings: Settings, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables; all or none.

    Raises:
        PatchError: one of them has another value already, or vLLM was imported without them.
    """
    for name, value in settings.variables.items():
        if name in environment and environment[name] != value:
            raise PatchError(
                f"{name}={environment[name]}",
                f"must be {value} for the two sides to have equal bits",
                "unset it before this call",
            )
    missing = [name for name in settings.variables if name not in environment]
    if missing and "vllm" in sys.modules:
        raise PatchError(
            f"{missing[0]}", "was not set when vllm was imported", "call this before the first import of vllm"
        )
    environment.update(settings.variables)
    for name, value in settings.usual.items():
        environment.setdefault(name, value)
    if cpu_isa.VARIABLE in settings.variables:
        cpu_isa.apply()


def check_plugin(settings: Settings, environment: Mapping[str, str] = os.environ) -> None:
    """What samebits puts into an engine comes in as a plugin of vLLM.

    Raises:
        PatchError: it is needed, and vLLM would not load it.
    """
    if not {cpu_pieces.VARIABLE, switch.VARIABLE} & set(settings.variables):
        return
    allowed = environment.get("VLLM_PLUGINS")
    if allowed is not None and "samebits" not in allowed.split(","):
        raise PatchError(
            f"VLLM_PLUGINS={allowed}", "keeps the samebits plugin out of the engine", "add samebits to it, or unset it"
        )
    if not any(point.name == "samebits" for point in metadata.entry_points(group="vllm.general_plugins")):
        raise PatchError("samebits", "is no plugin of this vLLM", "pip install it; a path is not enough")


def merge(settings: Settings, given: Values) -> dict[str, Any]:
    """The engine's keyword arguments, with the caller's own.

    Raises:
        PatchError: the caller wants another value for one that the bits depend on.
    """
    for name, value in settings.arguments.items():
        if name in given and given[name] != value:
            raise PatchError(f"{name}={given[name]!r}", f"must be {value!r} here", "leave it out")
    return {**settings.convenient, **given, **settings.arguments}
