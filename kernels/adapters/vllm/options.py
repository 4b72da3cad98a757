"""What an engine needs to run samebits' operators, for `kernels.api.engine_options`."""

from __future__ import annotations

from samebits.kernels.adapters.setup.settings import Settings
from samebits.kernels.adapters.vllm import switch

SETTINGS = Settings(
    {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        switch.VARIABLE: switch.TABLE,
    },
    {"logprobs_mode": "processed_logprobs"},
    {"skip_tokenizer_init": True, "seed": 0},
)
