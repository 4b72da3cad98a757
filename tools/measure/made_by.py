"""Is a stored rollout of this experiment's rollout side? Asked before an engine is loaded: of another model, every
figure and every operator would be about the wrong thing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.schema.artifacts.rollout import Origin, RolloutManifest
from samebits.tools.schema.errors import UserError
from samebits.tools.sides.model_folder import sample_digest
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from samebits.tools.schema.experiment import Experiment

NEXT = "give the experiment that made it (--config and --set as they were), or sample a new one (no --rollout)"


def origin_of(experiment: Experiment) -> Origin:
    """What a rollout of this experiment has on record."""
    config = experiment.rollout
    where = str(Path(config.model).expanduser().resolve()) if config.model else ""
    return Origin(side=config.side, model=where, digest=sample_digest(where) if where else "")


def check_origin(experiment: Experiment, rollout: Path) -> None:
    """Other settings of the same side and model are no difference, nor is the same model in another folder, nor are
    other weights in the same folder (a training loop updates them in place; the diff says so itself).

    Raises:
        UserError: a Rollout artifact that another side or another model sampled; a damaged artifact.
    """
    if not rollout.is_dir():
        return
    made = artifact.read(rollout, RolloutManifest).origin
    if made is None:
        return
    now = origin_of(experiment)
    if made.side != now.side:
        raise UserError(str(rollout), f'was sampled by side "{made.side}", [rollout] side is "{now.side}" here', NEXT)
    moved = bool(made.digest) and made.digest == now.digest
    if made.model != now.model and not moved:
        raise UserError(str(rollout), f"was sampled from {made.model}, [rollout] model is {now.model} here", NEXT)
