"""A user's own model as a side: `side = "python:package.module:function"`. The protocol is in docs/python-side.md.

Legend: B rows of a batch, L its length, V vocabulary.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Rollout
from samebits.tools.sides.python.protocol import check_model
from samebits.tools.sides.scoring.torch_side import TorchSide

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.schema.experiment import Workload
    from samebits.tools.schema.passes import How, Open
    from samebits.tools.schema.results import Cell
    from samebits.tools.schema.sites import CapturePlan, Edit
    from samebits.tools.sides.protocol import RolloutData, Scores
    from samebits.tools.sides.python.protocol import Model
    from samebits.tools.sides.scoring.batches import Batch

DOC = "see docs/python-side.md"


class PythonSide(TorchSide):
    """The object a factory returned."""

    def __init__(self, command: Open, model: Model) -> None:
        config = command.config
        super().__init__("log_softmax" if isinstance(config, Rollout) else config.logprob)
        self.model = model
        self.module = model.module
        self.name = config.side
        self.mode = config.logprobs if isinstance(config, Rollout) else "processed"
        self.role = command.role
        self.device = torch.device(command.device)
        self.layout = "single" if isinstance(config, Rollout) else config.layout
        self.micro_batch = 1 if isinstance(config, Rollout) else config.micro_batch
        self.folder = Path(command.model)
        self.recomputes = not hasattr(model, "decode")
        self.limit = getattr(model, "max_positions", None)
        self.vocabulary = getattr(model, "vocabulary", None)
        self.packs = bool(getattr(model, "packed", False))
        if self.layout == "packed" and not self.packs:
            raise UserError(
                f"{self.role}.layout",
                f'"packed", but {self.name} does not say that it keeps packed sequences apart',
                "give its object `packed = True` when positions that start again at 0 begin a new sequence, or use "
                "another layout",
            )
        if config.kernels != "none":
            raise UserError(
                f"{self.role}.kernels", "nothing can be put under a python: side", "call the kernels in your own model"
            )

    @classmethod
    def load(cls, command: Open) -> Self:
        """Import the factory, call it, check what it returns.

        Raises:
            UserError: the name is not module:function, it cannot be imported, it rejects its arguments, or what it
            returns
                misses a part of the protocol.
        """
        factory = find_factory(command.config.side)
        config = command.config
        options = dict(config.engine if isinstance(config, Rollout) else config.options)
        given = {
            "model": command.model,
            "dtype": getattr(torch, config.dtype),
            "device": torch.device(command.device),
        } | options
        return cls(command, check_model(config.side, _call(factory, config.side, given)))

    def describe(self) -> tuple[dict[str, str | int | float | bool | None], list[str]]:
        """See Side.describe."""
        facts, lines = self.numbers()
        own: dict[str, Cell] = {"name": self.name, "cache": not self.recomputes}
        return own | facts, lines

    def logits(self, batch: Batch) -> torch.Tensor:
        """See TorchSide.logits: all rows of the user's forward, then the asked ones."""
        logits_BLV = self.model.forward(batch.ids_BL.to(self.device), batch.positions_BL.to(self.device))
        shape = tuple(batch.ids_BL.shape)
        if tuple(logits_BLV.shape[:2]) != shape or logits_BLV.dim() != 3:
            raise UserError(
                self.name,
                f"forward gave logits of shape {tuple(logits_BLV.shape)} for tokens {shape}",
                f"return [B, L, V]; {DOC}",
            )
        assert batch.rows.head_R is not None
        return logits_BLV.flatten(0, 1)[batch.rows.head_R.to(self.device)]

    def next_logits(self, ids_1L: torch.Tensor, positions_1L: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        """Logits [1, V] after these tokens, and the cache to go on with."""
        if self.recomputes:
            return self.model.forward(ids_1L, positions_1L)[0, -1:], None
        logits_1LV, cache = self.model.decode(ids_1L, positions_1L, cache)  # type: ignore[attr-defined]
        return logits_1LV[0, -1:], cache

    def generate(self, workload: Workload) -> RolloutData:
        """See Side.generate."""
        from samebits.tools.sides.scoring.decode import generate

        if self.vocabulary is None:
            raise UserError(
                self.name, "cannot generate: its object does not say its vocabulary", f"give it `vocabulary`; {DOC}"
            )
        return generate(self, workload, self.folder, set(), self.mode)

    def score(
        self, data: RolloutData, how: How, plan: CapturePlan | None, edits: tuple[Edit, ...], folder: Path
    ) -> Scores:
        """See TorchSide.score; as rollout side `how.path = "decode"` feeds tokens one by one."""
        if self.role == "rollout" and how.path == "decode":
            from samebits.tools.sides.scoring.decode import score_decode

            with self.recorded(data, plan, edits, folder):
                return score_decode(self, data)
        if how.layout == "packed" and not self.packs:
            raise UserError("packed", f"{self.name} does not say that it keeps packed sequences apart", "leave it out")
        return super().score(data, how, plan, edits, folder)

    def save(self, path: Path) -> None:
        """See TorchSide.save: the module's own names."""
        from safetensors.torch import save_model

        part = path.with_name(path.name + ".part")
        save_model(self.module, str(part))
        part.replace(path)

    def push(self, weights: Path, version: int, repair: bool, *, reset: bool = True) -> list[str]:
        """See Side.push: a safetensors file with the module's own names, copied in place."""
        from safetensors.torch import load_model

        try:
            load_model(self.module, weights)
        except (OSError, RuntimeError) as error:
            raise UserError(
                str(weights), f"does not fit {self.name} ({error})", "push a file that this side saved"
            ) from error
        return [f"weights of version {version} loaded"]


def find_factory(side: str) -> Callable[..., Any]:
    """The function that a side of the form python:package.module:function names.

    Raises:
        UserError: another form, a module that cannot be imported, no such function.
    """
    name, _, function = side.removeprefix("python:").partition(":")
    if not name or not function:
        raise UserError(f"side {side!r}", "not of the form python:package.module:function", f"name the factory; {DOC}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a user's module may raise anything
        reason = f"cannot be imported ({type(error).__name__}: {error})"
        raise UserError(
            f"side {side!r}", reason, "put its folder on PYTHONPATH (the env of this side, or the shell)"
        ) from error
    factory = getattr(module, function, None)
    if not callable(factory):
        raise UserError(f"side {side!r}", f"module {name} has no function {function!r}", f"name the factory; {DOC}")
    return factory  # type: ignore[no-any-return]


def _call(factory: Callable[..., Any], side: str, given: dict[str, Any]) -> Any:
    try:
        inspect.signature(factory).bind(**given)
    except TypeError as error:
        raise UserError(
            f"side {side!r}",
            f"its factory does not take {', '.join(given)} ({error})",
            f"def factory(model, dtype, device, **options); {DOC}",
        ) from error
    return factory(**given)
