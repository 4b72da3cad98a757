"""The patch engine under a transformers side: where tools meet samebits.kernels.adapters.transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.schema.experiment import Kernels


def install(module: Any, kernels: Kernels) -> Any:
    """Put a table ("vllm", "samebits") or candidate folders under the model; returns the engine's handle.

    Raises:
        UserError: the engine refuses (unknown family, missing operators, a shape outside the contract).
    """
    from samebits.kernels.adapters.errors import PatchError

    try:
        from samebits.kernels.adapters.tables.candidates import roles
        from samebits.kernels.adapters.transformers.engine import patch

        return patch(module, kernels if isinstance(kernels, str) else roles(kernels))
    except PatchError as error:
        raise UserError(error.thing, error.reason, error.next_step) from error
    except ImportError as error:
        raise UserError(
            f"kernels = {kernels!r}",
            f"its operators cannot be loaded ({error})",
            "install the package this table needs",
        ) from error


def foresee(folder: Path, table: str, dtype: str, device: Literal["cpu", "cuda"]) -> None:
    """Refuse now what the patch engine would refuse of this folder's config.json at start-up. Loads no weights.

    Raises:
        UserError: no role list, a dtype outside the table, a setting of the config that no operator follows.
    """
    from transformers import AutoConfig

    from samebits.kernels.adapters.errors import PatchError
    from samebits.kernels.adapters.tables.support import refusal
    from samebits.kernels.adapters.transformers import checks

    config = AutoConfig.from_pretrained(folder)
    family = (config.architectures or [""])[0]
    try:
        if (error := refusal(family, table, device, dtype)) is not None:
            raise error
        checks.config(SimpleNamespace(config=config))
    except PatchError as error:
        raise UserError(error.thing, error.reason, error.next_step) from error
