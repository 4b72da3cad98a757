"""What can be said of a request before any library of a side is loaded, which takes long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.kernels.adapters.setup import machine
from samebits.tools.schema.errors import UserError
from samebits.tools.sides.model_folder import check_model_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samebits.tools.schema.requests import Request

OWN_WORD = ("inspect", "build")
"""Verbs that say themselves what is lacking: one in its table, one of its own option."""
OF_FOLDERS = ("vllm", "transformers")
"""Sides that load a model folder."""


def check(request: Request) -> None:
    """The device and the model folders.

    Raises:
        UserError: cuda was asked for, and torch sees none; a model folder that no side can load.
    """
    asked = getattr(getattr(request, "experiment", request), "device", "auto")
    if request.kind not in OWN_WORD and asked == "cuda" and machine.device() == "cpu":
        raise UserError(
            'device = "cuda"', "torch sees no GPU here", 'set device = "cpu", or run it where torch is a CUDA build'
        )
    for model in models(request):
        check_model_folder(model)


def models(request: Request) -> Iterator[str]:
    """The model folders that a request will load, where it names them itself."""
    if request.kind not in ("measure", "capture", "diff", "gate") or (request.kind == "gate" and request.tiny):
        return
    experiment = request.experiment
    only = request.side if request.kind == "capture" else ""
    against = request.against if request.kind == "diff" else "trainer"
    if experiment.rollout.side in OF_FOLDERS and request.rollout is None and only != "trainer":
        yield experiment.rollout.model
    # The engine against itself needs no trainer.
    if experiment.trainer.side in OF_FOLDERS and only != "rollout" and against == "trainer":
        yield experiment.trainer_model
