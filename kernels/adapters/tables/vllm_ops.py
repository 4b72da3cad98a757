"""The table "vllm": vLLM's own operators, with backward passes in plain PyTorch. No engine is started."""

from __future__ import annotations

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables.operators import Facts, Table
from samebits.kernels.adapters.tables.vllm_hooks import CPU, CUDA, match


def table(facts: Facts) -> Table:
    """vLLM's operators for the model's device.

    Raises:
        PatchError: vLLM is missing, or one of its operators is not there with the expected parameters.
    """
    if facts.device.type == "cpu":
        match(CPU)
        from samebits.kernels.adapters.tables import vllm_cpu

        return vllm_cpu.table(facts)
    if facts.device.type == "cuda":
        match(CUDA)
        from samebits.kernels.adapters.tables import vllm_cuda

        return vllm_cuda.table(facts)
    raise PatchError(f"device {facts.device}", 'is not one of the table "vllm"', "use cpu or cuda")
