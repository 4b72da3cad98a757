"""Optional TensorBoard event files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samebits.tools.schema.artifacts.rl import StepLine


def writer_for(folder: Path) -> Callable[[StepLine], None]:
    """Writes each step's figures under `folder/tensorboard`.

    Raises:
        UserError: tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            "[rl] tensorboard = true",
            f"tensorboard cannot be loaded ({error})",
            'pip install "samebits[tensorboard]", or set it to false',
        ) from error
    writer = SummaryWriter(str(folder / "tensorboard"))

    def write(line: StepLine) -> None:
        figures = {
            "reward": line.reward,
            "solved": line.solved,
            "k3": line.gap.k3,
            "max_diff": line.gap.max,
            "nonzero": line.gap.nonzero,
            "gradient_norm": line.gradient_norm,
            "loss": line.loss,
            "entropy": line.entropy,
            "staleness_k3": line.staleness.k3,
            "mean_weight": line.mean_weight,
        }
        for name, value in figures.items():
            writer.add_scalar(name, value, line.step)
        writer.flush()

    return write
