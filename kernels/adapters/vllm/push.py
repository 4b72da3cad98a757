"""Weights of a live trainer into a live engine of the same process, through vLLM's own reload.

Two defects of that reload on CPU (vLLM 0.32) leave other weights without a sign: experts are not packed again, and a
tied head keeps its old packed copy. What the reload did not do is seen by watching it, and done after it.
"""

from __future__ import annotations

from typing import Any

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.transformers.checkpoint import checkpoint_tensors

DEFECTS = {
    "experts": "experts: a reload does not prepack them again, so raw weights are read as packed ones",
    "head": "tied head: lm_head keeps its own packed copy, which a reload does not refresh",
}
"""Kind -> in words."""
REFUSALS = (KeyError, ValueError, RuntimeError, AssertionError)
"""What vLLM raises for weights that are not those of its model."""


def push(llm: Any, model: Any) -> list[str]:
    """Load the model's weights into the engine and forget its cached prefixes.

    Args:
        llm: vllm.LLM with its engine in this process and nothing running.
        model: a transformers causal LM of the same checkpoint.

    Returns:
        What was done, in lines.

    Raises:
        PatchError: the engine takes no such weights, or its prefix cache cannot be reset.
    """
    # The reload copies, so it reads the trainer's own tensors: by way of the CPU a push from a GPU takes seconds.
    state = checkpoint_tensors(model, in_place=True)
    try:
        found = llm.collective_rpc(reload, args=(state,))[0]
    except REFUSALS as error:
        raise PatchError(
            "the engine", f"does not take the weights of this model ({type(error).__name__}: {error})", "start it again"
        ) from error
    if not llm.reset_prefix_cache():
        raise PatchError("the prefix cache", "cannot be reset: requests are still running", "wait for them")
    return [f"{len(state)} tensors pushed, prefix cache reset", *map(worked_round, found)]


def worked_round(kind: str) -> str:
    """The line about one defect that `reload` met and repaired."""
    return f"reload defect of vLLM, {DEFECTS[kind]}; worked round"


def reload(worker: Any, state: dict[str, Any], repair: bool = True) -> list[str]:
    """Inside the worker: reload, then pack what the reload left unpacked.

    Args:
        state: tensors under checkpoint names, on any device; they are copied.
        repair: False leaves what was not packed as it is.

    Returns:
        The kinds of DEFECTS that were met.
    """
    runner = worker.model_runner
    parts = _packed(runner.get_model()) if str(runner.device) == "cpu" else []
    done: set[int] = set()
    for key, _, (owner, name), _ in parts:
        vars(owner)[name] = _watched(getattr(owner, name), key, done)
    try:
        worker.reload_weights(weights_iterator=iter(state.items()), is_checkpoint_format=True)
    finally:
        for _, _, (owner, name), _ in parts:
            vars(owner).pop(name, None)
    left = [(kind, getattr(owner, name), layer) for key, kind, (owner, name), layer in parts if key not in done]
    if repair:
        for _, pack, layer in left:
            pack(layer)
    return sorted({kind for kind, _, _ in left})


def _packed(model: Any) -> list[tuple[int, str, tuple[Any, str], Any]]:
    """(id, kind, the method that packs it, layer) of what holds a packed copy that a reload may forget."""
    modules = dict(model.named_modules())
    embeddings = {id(module.weight) for path, module in modules.items() if path.endswith("embed_tokens")}
    name = "process_weights_after_loading"
    found = []
    for path, module in modules.items():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        if kernel is not None and hasattr(module, "w13_weight"):
            found.append((id(module), "experts", (kernel.fused_experts, name), module))
        if path == "lm_head" and id(module.weight) in embeddings and hasattr(module, "cpu_linear"):
            found.append((id(module), "head", (module.quant_method, name), module))
    return found


def _watched(method: Any, key: int, done: set[int]) -> Any:
    def watched(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if id(layer) == key:
            done.add(key)
        return method(layer, *args, **kwargs)

    return watched
