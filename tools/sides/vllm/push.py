"""Weights into the live engine through the kernels' own push, checked by reading them back.

Legend: E experts, I intermediate, H hidden.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from samebits.kernels.adapters.vllm import push as vllm_push
from samebits.tools.schema.errors import UserError
from samebits.tools.sides.model_folder import check_safetensors
from samebits.tools.sides.scoring.views import weight_view
from samebits.tools.sides.vllm import engine
from samebits.tools.sides.vllm import weights as worker_weights

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.schema.artifacts.weights import SideWeights, WeightView
    from samebits.tools.sides.vllm.side import VllmSide

EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")
SEEN_ON: dict[str, str | tuple[str, ...]] = {"head": "lm_head.weight", "experts": worker_weights.EXPERTS}
"""Reload defect -> ends of the names of the weights it leaves stale."""
DIGEST_BYTES = 16


def push(side: VllmSide, source: Path, repair: bool, *, reset: bool = True) -> list[str]:
    """Reload, repair vLLM's reload defects if asked, reset the prefix cache, read all weights back; what was found, in
    lines.

    Raises:
        UserError: unreadable weights, weights the engine does not have, or an engine that still holds others.
    """
    state = read_state(source)
    try:
        met = side.worker(vllm_push.reload, state, repair)
    except vllm_push.REFUSALS as error:
        side.broken = f"a push of {source} failed half way"
        raise UserError(
            str(source),
            f"does not fit this model ({type(error).__name__}: {error})",
            "open the side again and push weights of its model",
        ) from error
    expected = expected_views(state, tied=bool(side.llm.llm_engine.model_config.hf_text_config.tie_word_embeddings))
    lost = missing(expected, side.worker(worker_weights.read_back))
    lines = [f"{len(state)} tensors pushed"]
    if repair:
        lines += map(vllm_push.worked_round, met)
        others = lost
    else:
        left = {kind: [name for name in lost if name.endswith(SEEN_ON[kind])] for kind in met}
        lines += [
            f"reload defect of vLLM, {vllm_push.DEFECTS[kind]}; seen on {len(names)} weights; left as it is"
            for kind, names in left.items()
        ]
        others = [name for name in lost if not any(name in names for names in left.values())]
    if reset:
        engine.reset_cache(side.llm)
    if others:
        side.broken = f"after a push of {source} it holds other weights"
        raise UserError(
            str(source),
            f"the engine does not hold {len(others)} of the pushed weights, first {others[0]}",
            "open the side again; report this model",
        )
    cache = "reset" if reset else "kept"
    lines.append(f"{len(expected) - len(lost)} of {len(expected)} weights read back equal; prefix cache {cache}")
    return lines


def read_state(source: Path) -> dict[str, torch.Tensor]:
    """Checkpoint tensors of a safetensors file or of a model folder.

    Raises:
        UserError: missing or damaged.
    """
    from safetensors.torch import load_file

    files = [source]
    if source.is_dir():
        index = source / "model.safetensors.index.json"
        files = sorted(source.glob("*.safetensors"))
        if index.is_file():
            files = [
                source / name
                for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            ]
    if not files or not all(file.is_file() for file in files):
        raise UserError(
            str(source), "no safetensors weights here", "give the file that a step saved, or a model folder"
        )
    for file in files:
        check_safetensors(file)
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def expected_views(state: dict[str, torch.Tensor], tied: bool) -> list[WeightView]:
    """The pushed weights as a side would show them: experts merged, a tied head under its own name too."""
    views, experts = [], defaultdict[str, dict[str, dict[int, torch.Tensor]]](lambda: defaultdict(dict))
    for name, tensor in state.items():
        if match := EXPERT.fullmatch(name):
            experts[match[1]][match[3]][int(match[2])] = tensor
            continue
        module, _, parameter = name.rpartition(".")
        views.append(weight_view(module, parameter, tensor, "pushed"))
        if tied and module.endswith("embed_tokens") and "lm_head.weight" not in state:
            views.append(weight_view("lm_head", parameter, tensor, "pushed"))
    for path, parts in experts.items():
        gate_EIH, up_EIH, down_EHI = (
            torch.stack([parts[part][e] for e in sorted(parts[part])]) for part in ("gate_proj", "up_proj", "down_proj")
        )
        views.append(weight_view(path, worker_weights.EXPERTS[0], torch.cat([gate_EIH, up_EIH], dim=1), "pushed"))
        views.append(weight_view(path, worker_weights.EXPERTS[1], down_EHI, "pushed"))
    return views


def missing(expected: list[WeightView], held: SideWeights) -> list[str]:
    """Names of pushed weights that no weight of the same layer holds as consecutive rows."""
    by_key: dict[Any, list[tuple[str, bytes]]] = defaultdict(list)
    for view in held.weights:
        # An engine may have widened a weight (a bias on CPU): as the narrower dtype it is what was pushed.
        for dtype, rows in view.forms():
            by_key[_key(view, dtype)].append((view.module, bytes.fromhex("".join(rows))))
    return [f"{view.module}.{view.name}" for view in expected if not _held(view, by_key[_key(view, view.dtype)])]


def _held(view: WeightView, candidates: list[tuple[str, bytes]]) -> bool:
    needle = bytes.fromhex("".join(view.rows))
    own = [(module, rows) for module, rows in candidates if module == view.module]
    for _, rows in own or candidates:
        at = rows.find(needle)
        while at >= 0 and at % DIGEST_BYTES:
            at = rows.find(needle, at + 1)
        if at >= 0:
            return True
    return False


def _key(view: WeightView, dtype: str) -> tuple[str, str, tuple[int, ...]]:
    layer = re.search(r"\d+", view.module)
    return (layer.group() if layer else "", dtype, view.shape[1:])
