"""One experiment on a model made for it: that of the demo, and of `samebits gate --tiny`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.schema.experiment import Experiment, Rollout, Trainer, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MANY = Workload(prompts=32, prompt_tokens=(3, 200), new_tokens=32)
SMALL_CACHE: dict[str, str | int | float | bool] = {"gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": 2 << 30}
"""On a GPU, of which an engine takes nearly all otherwise, and refuses to start where another program has some."""


def experiment_for(
    model: Path, device: str, switches: Mapping[str, str], kernels: str = "none", workload: Workload = MANY
) -> Experiment:
    """The engine is eager: its operators can then be tapped one by one.

    Args:
        switches: environment of both sides that takes an engine's own inconsistencies away.
        kernels: of the trainer, packed then; "samebits" under the engine too.
    """
    shared = kernels == "samebits"  # a table of both sides; the table "vllm" has nothing to put under vLLM
    trainer = {"kernels": kernels, "layout": "packed", "micro_batch": 64, "logprob": "log_softmax"}
    return Experiment.model_validate(
        {
            "device": device,
            "rollout": Rollout(
                model=str(model),
                kernels="samebits" if shared else "none",
                eager=True,
                max_model_len=512,
                env=dict(switches),
                engine=(SMALL_CACHE if device == "cuda" else {}) | {"max_num_batched_tokens": 8192},
            ),
            "trainer": Trainer.model_validate((trainer if kernels != "none" else {}) | {"env": dict(switches)}),
            "workload": workload,
        }
    )
