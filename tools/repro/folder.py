"""Writes a repro: repro.py, inputs.safetensors, README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.repro.template import HEAD, TAIL

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from samebits.tools.diff.causes.observation import Observation
    from samebits.tools.repro.sides import Side


def script(title: str, seen: Observation, rollout: Side, trainer: Side, shrunk: str, device: str) -> str:
    """Text of repro.py."""
    head = HEAD.format(
        title=title, rollout=rollout.name, trainer=trainer.name, shrunk=f"Shrunk: {shrunk}", device=device,
        scalars=dict(seen.scalars),
    )  # fmt: skip
    support = dict.fromkeys([*rollout.support, *trainer.support])
    sides = [
        f"def {name}(inputs, scalars):\n    {side.body}" for name, side in (("rollout", rollout), ("trainer", trainer))
    ]
    return "\n\n".join(
        [head.rstrip(), *(f"\n{text.rstrip()}" for text in support), *(f"\n{text}" for text in sides), TAIL]
    )


def tensors(seen: Observation) -> Mapping[str, torch.Tensor]:
    """What inputs.safetensors holds: inputs, and both outputs as they were where it was cut out."""
    held = {f"in.{role}": tensor for role, tensor in seen.inputs.items()} | {
        "rollout": seen.rollout,
        "trainer": seen.trainer,
    }
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in held.items()}


def readme(title: str, cause: str, fingerprint: str, rollout: Side, trainer: Side, shrunk: str, size: int) -> str:
    """Text of README.md."""
    needs = "torch and vllm" if rollout.vllm or trainer.vllm else "torch alone"
    return "\n".join([
        f"# {title}", "",
        f"`python repro.py` needs {needs}; exit code 0 equal, 1 differs, 2 could not run.", "",
        f"- rollout: {rollout.name}", f"- trainer: {trainer.name}", f"- cause: {cause}", f"- seen: {fingerprint}",
        f"- shrunk: {shrunk} ({size:,} bytes of inputs)", "",
    ])  # fmt: skip
