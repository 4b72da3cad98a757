"""The patch engine under a transformers side: where tools meet samebits.kernels.adapters.transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from samebits.tools.schema.experiment import Kernels


def install(module: Any, kernels: Kernels) -> Any:
    """Put a table ("vllm", "samebits") or candidate folders under the model; returns the engine's handle.

    Raises:
        UserError: the engine refuses (unknown family, missing operators, a shape outside the contract).
    """
    from samebits.kernels.adapters.errors import PatchError

    if not isinstance(kernels, str):
        raise UserError(
            "trainer.kernels",
            "candidate folders cannot be put under a transformers side yet",
            'use "vllm" or "samebits"',
        )
    try:
        from samebits.kernels.adapters.transformers.engine import patch

        return patch(module, kernels)
    except PatchError as error:
        raise UserError(error.thing, error.reason, error.next_step) from error
    except ImportError as error:
        raise UserError(
            f"kernels = {kernels!r}",
            f"its operators cannot be loaded ({error})",
            "install the package this table needs",
        ) from error
