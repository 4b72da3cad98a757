"""The inputs of an expert layer: what the tokens were, what the router said, and the experts' weights.

Legend: T token rows, E experts, H hidden, F expert width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from samebits.tools.diff.causes.observation import Observation
from samebits.tools.diff.causes.search import spread
from samebits.tools.diff.model_folder import Missing

if TYPE_CHECKING:
    from samebits.tools.diff.model_folder import Model
    from samebits.tools.diff.observe import Case


ROWS = 256
"""An expert layer multiplies more than any other operator; so many rows hold more than enough elements."""


def observe_experts(case: Case) -> Observation:
    """Router and experts together: an engine keeps the routing weights inside, so the logits are the input.

    Raises:
        Missing: the input or the logits are not paired, or the weights are stored under names that are not known.
    """
    container = case.suspect.container
    count = int(case.model.number("num_experts", case.model.config.get("num_local_experts")))
    x = next((p for p in case.suspect.inputs if p.trainer.module == container and p.trainer.port == "in0"), None)
    if x is None:
        raise Missing(f"the input of {container} is not paired")
    w13, w2 = expert_weights(case.model, container, count)
    kept = spread(torch.arange(len(case.keys)), ROWS)
    keys = case.keys[kept]
    rows = {"x": case.values(str(x.rollout), keys), "logits": case.values(_logits(case, count), keys)}
    scalars = {
        "top_k": int(case.model.number("num_experts_per_tok")),
        "renormalise": bool(case.model.config.get("norm_topk_prob", True)),
    }
    inputs = {**rows, "w13": w13, "w2": w2}
    return Observation("experts", inputs, case.ours[kept], case.theirs[kept], scalars, case.position_T[kept])


def _logits(case: Case, count: int) -> str:
    """The rollout's site of the router's logits: a module beside the experts with one output per expert, paired by its
    weights."""
    beside = case.suspect.container.rpartition(".")[0]
    for pair in case.pairs:
        site, ours = pair.trainer, str(pair.rollout)
        if site.port != "out0" or pair.by != "weights" or site.module.rpartition(".")[0] != beside:
            continue
        if ours in case.rollout.numbers and case.rollout.tap(ours).columns == count:
            return ours
    raise Missing(f"the router's logits beside {case.suspect.container} are not paired")


def expert_weights(model: Model, container: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[E, 2F, H] (gate first) and [E, H, F], merged in the checkpoint or one by one.

    Raises:
        Missing: other names.
    """
    if f"{container}.gate_up_proj" in model.files:
        return model.tensor(f"{container}.gate_up_proj"), model.tensor(f"{container}.down_proj")
    gate, up, down = (
        torch.stack([model.weight(f"{container}.{number}.{name}_proj") for number in range(count)])
        for name in ("gate", "up", "down")
    )
    return torch.cat([gate, up], dim=1), down
