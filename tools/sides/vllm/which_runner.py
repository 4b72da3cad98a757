"""Which of its two model runners vLLM will take, before an engine is started: by its own rule, as its source has it."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from samebits.tools.schema.errors import UserError
from samebits.tools.sides.vllm import hooks

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
"""Keys of config.json by which vLLM tells a mixture of experts."""
EXPERT_MODELS = (
    "DeepseekV2ForCausalLM",
    "GraniteMoeForCausalLM",
    "InklingForCausalLM",
    "InklingForConditionalGeneration",
    "LongcatFlashNgramForCausalLM",
    "Qwen2MoeForCausalLM",
)
"""The mixtures of experts that 0.26.0 runs with Model Runner V2 (DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES)."""
FIRST_ONLY = ("logits_processors", "enable_return_routed_experts", "enable_prompt_embeds", "kv_sharing_fast_prefill")
"""Arguments of vllm.LLM that Model Runner V2 of 0.26.0 does not take."""
EVERY_MODEL = (0, 32)
"""From this version on no model is left to the V1 runner; until then 0.26.0's rule."""


def runner_for(
    installed: str, device: str, environ: Mapping[str, str], model: Mapping[str, Any], arguments: Mapping[str, Any]
) -> hooks.Runner:
    """The runner to expect; what ran is in the side's facts.

    Not foreseen: what only the loaded model tells (hybrid and attention-free ones stay with V1 in 0.26.0), speculative
    decoding, and parallel layouts.

    Args:
        device: "cpu" or "cuda".
        environ: of the engine's process.
        model: config.json.
        arguments: of vllm.LLM, besides samebits' own.

    Raises:
        UserError: VLLM_USE_V2_MODEL_RUNNER is no number.
    """
    if (asked := environ.get(VARIABLE)) is not None:
        return _asked(asked)
    if device == "cpu":
        # Model Runner V2 needs Triton with a driver.
        return "V1"
    if hooks.numbers(installed) >= EVERY_MODEL:
        return "MRV2"
    text = model.get("text_config")
    experts = any((text if isinstance(text, dict) else model).get(key) for key in EXPERTS)
    if experts and not set(model.get("architectures") or ()) & set(EXPERT_MODELS):
        return "V1"
    if any(arguments.get(name) for name in FIRST_ONLY) or entry_points(group="vllm.logits_processors"):
        return "V1"
    return "MRV2"


def _asked(value: str) -> hooks.Runner:
    try:
        return "MRV2" if int(value) else "V1"
    except ValueError as error:
        raise UserError(f"{VARIABLE}={value}", "vLLM reads a number there", "set it to 0 or 1, or unset it") from error
