"""The table "vllm": vLLM's own operators, with backward passes in plain PyTorch. No engine is started."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.operators import Facts, Table

Hooks = Mapping[tuple[str, str], tuple[str, ...]]
"""(module, name) -> first parameters of what is called there."""


def table(facts: Facts) -> Table:
    """vLLM's operators for the model's device.

    Raises:
        PatchError: vLLM is missing, or one of its operators is not there with the expected parameters.
    """
    if facts.device.type == "cpu":
        from samebits.kernels.adapters import vllm_cpu

        match(vllm_cpu.HOOKS)
        return vllm_cpu.table(facts)
    if facts.device.type == "cuda":
        from samebits.kernels.adapters import vllm_cuda

        match(vllm_cuda.HOOKS)
        return vllm_cuda.table(facts)
    raise PatchError(f"device {facts.device}", 'is not one of the table "vllm"', "use cpu or cuda")


def match(hooks: Hooks) -> None:
    """Compare what is called in vLLM with what is expected, before anything is patched."""
    for (module, name), expected in hooks.items():
        where = f"{module}.{name}"
        step = "install a vLLM version that samebits was run on (docs/exact-zero.md)"
        try:
            found: object = importlib.import_module(module)
            for part in name.split("."):
                found = found[part] if isinstance(found, dict) else getattr(found, part)
        except (ImportError, AttributeError, KeyError) as error:
            raise PatchError(where, f"is not there ({error})", step) from error
        if callable(found):
            got = tuple(inspect.signature(found).parameters)[: len(expected)]
            if got != expected:
                raise PatchError(where, f"takes ({', '.join(got)}), expected ({', '.join(expected)})", step)
