"""What the factory of a python: side returns.

Legend: B rows of a batch, L its length, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    import torch


class Model(Protocol):
    """Required parts. Optional ones, looked up by name:

    vocabulary (int): token ids are below it; needed to generate.
    max_positions (int): longest sequence.
    packed (bool): positions that start again at 0 begin a new sequence, which never sees the one before.
    decode(token_ids_1L, position_ids_1L, cache) -> (logits_1LV, cache): tokens after those in `cache` (None at first).
    """

    module: torch.nn.Module
    """Everything that computes and holds weights; its submodules are tapped by their names. In eval mode, on the
    device.
    """

    def forward(self, token_ids_BL: torch.Tensor, position_ids_BL: torch.Tensor) -> torch.Tensor:
        """Logits [B, L, V], any floating dtype, of int64 ids and positions. Causal; calls `module` once. Right
        padding is id 0 with positions that go on counting."""
        ...


def check_model(side: str, model: Any) -> Model:
    """The object itself when it has what is required.

    Raises:
        UserError: names the missing part.
    """
    import torch

    if not isinstance(getattr(model, "module", None), torch.nn.Module):
        raise UserError(
            f"side {side!r}", "what its factory returned has no `module` (torch.nn.Module)", "see docs/python-side.md"
        )
    if not callable(getattr(model, "forward", None)):
        raise UserError(
            f"side {side!r}",
            "what its factory returned has no `forward(token_ids, position_ids)`",
            "see docs/python-side.md",
        )
    if model.module.training:
        raise UserError(
            f"side {side!r}", "its module is in training mode (dropout is on)", "call module.eval() in the factory"
        )
    return cast("Model", model)
