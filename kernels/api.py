"""The public names of samebits for a training loop; the third is `samebits.tools.guard.Guard`.

from samebits.kernels.api import engine_options, patch_trainer

options = engine_options(device="cpu")  # before the first import of vllm
from vllm import LLM

llm = LLM("path/to/model", **options)
trainer = patch_trainer(model)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.setup import proved, settings

if TYPE_CHECKING:
    from samebits.kernels.adapters.transformers.trainer import Trainer

__all__ = ["PatchError", "engine_options", "patch_trainer"]


def engine_options(
    *,
    device: str = "auto",
    kernels: str = "auto",
    lock: Path | str | None = None,
    allow_unproven: bool = False,
    **arguments: Any,
) -> dict[str, Any]:
    """Keyword arguments for `vllm.LLM` whose rollout a trainer of `patch_trainer` reproduces bit for bit.

    The environment variables that the bits depend on are set in this process, so call it before vllm is imported. An
    engine in another process (a Ray actor) calls it there.

    Args:
        device: "cpu", "cuda" or "auto". Name it where torch should not be asked yet.
        kernels: "vllm" (the engine as it is, with the switches that make it equal to itself), "samebits" (the library's
            operators under the engine, CUDA), or "auto": "vllm" on CPU, "samebits" on CUDA.
        lock: samebits.lock to compare with, `arguments` that can change a bit included; None: $SAMEBITS_LOCK, else
            samebits.lock in the working directory where there is one.
        allow_unproven: a difference from the lock is a warning instead of an error.
        arguments: further arguments of vllm.LLM.

    Raises:
        PatchError: vllm was imported before, a variable or argument that must be otherwise, a set-up other than the
            locked one, an engine that would not load samebits' plugin.
    """
    device, kernels, found = settings.find(device, kernels)
    settings.check_plugin(found)
    options = settings.merge(found, arguments)
    settings.put(found)
    proved.compare("rollout", {"kernels": kernels}, lock, allow_unproven, options)
    return options


def patch_trainer(
    model: Any,
    *,
    kernels: str = "auto",
    lock: Path | str | None = None,
    allow_unproven: bool = False,
    families: tuple[Any, ...] = (),
    roles: Mapping[str, Any] | None = None,
) -> Trainer:
    """Put the engine's operators under a transformers causal LM; the result scores sampled tokens and pushes weights.

    Args:
        model: with loaded weights on the device it trains on.
        kernels, lock, allow_unproven: as in `engine_options`, with which they must agree.
        families: role lists (`adapters.transformers.roles.Family`) on top of the built-in ones.
        roles: role -> table name or Operator, on top of the table.

    Returns:
        A `Trainer` (`adapters/transformers/trainer.py`): `score(prompt_ids, sampled_ids)`, `push(llm)`, `lines`,
        `read_back()`, `undo()`.

    Raises:
        PatchError: the model is outside what the operators take, or a set-up other than the locked one.
    """
    device = next(model.parameters()).device.type
    _, kernels, found = settings.find(device, kernels)
    settings.put(found)
    asked = {"kernels": kernels, "dtype": str(next(model.parameters()).dtype).removeprefix("torch.")}
    standing = proved.compare("trainer", asked, lock, allow_unproven)
    from samebits.kernels.adapters.transformers.engine import patch
    from samebits.kernels.adapters.transformers.trainer import Trainer

    table: Any = kernels if roles is None else {"*": kernels, **roles}
    return Trainer(patch(model, table, families=families), standing)
