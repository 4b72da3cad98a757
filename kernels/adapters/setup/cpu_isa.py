"""One switch for AMX. Must run before vLLM is imported.

ONEDNN_MAX_CPU_ISA keeps oneDNN from AMX, yet vLLM asks the CPU itself and would run its own AMX kernels: with other
bits for a row alone and in company, and ended by an illegal instruction, since it is oneDNN that asks the operating
system for the right to use the tiles.
"""

from __future__ import annotations

import os

VARIABLE = "ONEDNN_MAX_CPU_ISA"


def without_amx(isa: str) -> bool:
    """Whether this value of ONEDNN_MAX_CPU_ISA forbids AMX."""
    return bool(isa) and isa.upper() not in ("ALL", "DEFAULT") and "AMX" not in isa.upper()


def apply() -> None:
    """Make ONEDNN_MAX_CPU_ISA count for the whole process; where AMX is allowed, ask for the right to use it now.

    oneDNN asks with its first AMX product. A first pass of one or two rows has none, and would end in vLLM's AMX
    attention.
    """
    import torch

    if not without_amx(os.environ.get(VARIABLE, "")):
        if torch.cpu._is_amx_tile_supported():
            torch.cpu._init_amx()
        return
    for name in ("_is_amx_tile_supported", "_is_amx_fp16_supported"):
        if hasattr(torch.cpu, name):
            setattr(torch.cpu, name, lambda: False)
