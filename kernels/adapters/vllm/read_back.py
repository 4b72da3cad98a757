"""What stands in a running engine and what really ran there; called inside the worker."""

from __future__ import annotations

from typing import Any

from samebits.kernels.adapters.vllm.install import HELD
from samebits.kernels.adapters.vllm.switch import digest
from samebits.kernels.contract_version import CONTRACT_VERSION
from samebits.kernels.ops.ran import counts


def read_back(worker: Any) -> dict[str, Any]:
    """contract, digest, replaced (lines), ran (kernel -> launches in this process, those of graph captures included).

    For `LLM.collective_rpc(read_back)`. Empty `replaced`: the operators were not switched on.
    """
    return {
        "contract": CONTRACT_VERSION,
        "digest": digest(),
        "replaced": list(getattr(worker, HELD, ())),
        "ran": counts(),
    }
