"""The `vllm.general_plugins` entry point: loaded in every vLLM process, so it must cost and change nothing there.

Only where the environment names a request file (a side wrote it for its own engine) are the worker's hooks checked and
installed, and only where it asks for them are samebits' operators, or pieces of vLLM's own attention on CPU, put into
the engine: first those, then the hooks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from samebits.kernels.adapters.setup import cpu_pieces
from samebits.kernels.adapters.vllm import switch
from samebits.tools.schema.base import Model
from samebits.tools.schema.errors import UserError

VARIABLE = "SAMEBITS_REQUEST"


class PluginRequest(Model):
    """What a side asks of the worker processes of its engine."""

    taps: bool = False
    """Put opaque taps into the model before it is compiled."""
    tap_modules: tuple[str, ...] | None = None
    """Modules to tap; None: those whose taps move no bit (see taps.py)."""


def register() -> None:
    """Called by vLLM in each of its processes, possibly more than once."""
    if os.environ.get(switch.VARIABLE):
        from samebits.kernels.adapters.vllm import plugin as kernels

        kernels.register()
    elif os.environ.get(cpu_pieces.VARIABLE):
        from samebits.kernels.adapters.vllm import cpu_pieces as pieces

        pieces.register()
    path = os.environ.get(VARIABLE)
    if path:
        follow(read(Path(path)))


def read(path: Path) -> PluginRequest:
    """The request file.

    Raises:
        UserError: missing or damaged.
    """
    try:
        return PluginRequest.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise UserError(
            str(path),
            f"not a samebits request file ({error})",
            f"unset {VARIABLE}: samebits sets it for its own engines",
        ) from error


def follow(request: PluginRequest) -> None:
    """Wrap `Worker.load_model`: everything is in place when the model has its weights and is not yet compiled."""
    from vllm.v1.worker.gpu_worker import Worker

    from samebits.tools.sides.vllm.install import install, wrap

    def loads_model(method: Any) -> Any:
        def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = method(self, *args, **kwargs)
            install(self)
            if request.taps:
                from samebits.tools.sides.vllm.taps import put_taps

                put_taps(self, request.tap_modules)
            return result

        return load_model

    wrap(Worker, "load_model", loads_model)
