"""`kernels` of a vLLM side: what may be put under the engine, and what the side says about it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.vllm import switch
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samebits.tools.schema.experiment import Kernels


def check(kernels: Kernels) -> None:
    """The table can be put under this engine, and this process was started for it.

    Raises:
        UserError: candidate folders, or an environment that does not fit.
    """
    if kernels not in ("none", "vllm", "samebits"):
        raise UserError(
            f"[rollout] kernels = {kernels!r}", "cannot be put under vLLM here", 'use "none", "vllm" or "samebits"'
        )
    found = os.environ.get(switch.VARIABLE, "")
    if (kernels == "samebits") != bool(found):
        raise UserError(
            f"{switch.VARIABLE}={found}",
            f"does not fit [rollout] kernels = {kernels!r}",
            "leave the variable to samebits: it sets it for the process of the engine",
        )


@contextmanager
def refusals() -> Iterator[None]:
    """What the operators refuse, said as their own error and not as an engine that did not start.

    Raises:
        UserError: with thing, reason and next step of the refusal.
    """
    try:
        yield
    except UserError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, PatchError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise UserError(cause.thing, cause.reason, cause.next_step) from error


def lines(llm: Any) -> list[str]:
    """Contract, what was replaced and what has run while the engine came up.

    Raises:
        UserError: nothing was replaced.
    """
    from samebits.kernels.adapters.vllm.read_back import read_back

    found = llm.collective_rpc(read_back)[0]
    if not found["replaced"]:
        raise UserError(
            "kernels = samebits", "were not put into the engine", "install samebits where the engine runs (its plugin)"
        )
    return [
        f"samebits' operators, contract {found['contract']}, sources {found['digest']}",
        *(f"replaced: {line}" for line in found["replaced"]),
        f"ran so far: {', '.join(f'{name} x{count}' for name, count in found['ran'].items())}",
    ]
