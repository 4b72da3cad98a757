"""The bits of logprob, in plain PyTorch on every device.

M: rows, V: vocabulary, C: chunks.
"""

from __future__ import annotations

import torch

from samebits.kernels.ops.device_exp import device_exp
from samebits.kernels.ops.lanes import fold_lanes, halve, next_power_of_two
from samebits.kernels.ops.rounding import rounded

CHUNK = 4096
LANES = 128
UNIT = 8
"""The same for every dtype: logits in bf16 and the same values in float32 (vLLM's two samplers) give the same bits."""


def contract_with_state(
    logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logprob, top, total), each float32 [M]; see README.md."""
    z_MV = logits.float() if temperature is None else logits.float() / temperature[:, None]
    rows, vocabulary = z_MV.shape
    chunks = -(-vocabulary // CHUNK)
    z = torch.nn.functional.pad(z_MV, (0, chunks * CHUNK - vocabulary), value=-torch.inf).view(rows, chunks, CHUNK)
    m_MC = z.max(-1).values
    e = device_exp(z - torch.where(m_MC == -torch.inf, 0.0, m_MC)[..., None])
    passes = halve(e.view(rows, chunks, CHUNK // (LANES * UNIT), LANES * UNIT).transpose(-1, -2))
    s_MC = fold_lanes(halve(passes.view(rows, chunks, LANES, UNIT)))
    top_M = m_MC.max(-1).values
    t_MC = s_MC * device_exp(m_MC - top_M[:, None])
    total_M = fold_lanes(torch.nn.functional.pad(t_MC, (0, next_power_of_two(chunks) - chunks)))
    z_M = z_MV.gather(-1, targets.long()[:, None])[:, 0]
    result = (z_M.double() - top_M.double() - torch.log(total_M.double())).float()
    return rounded(result, torch.float32), top_M, total_M


def contract(logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None = None) -> torch.Tensor:
    """Logprob of each target, float32 [M]; see README.md."""
    return contract_with_state(logits, targets, temperature)[0]


def contract_backward(
    grad: torch.Tensor,
    logits: torch.Tensor,
    targets: torch.Tensor,
    temperature: torch.Tensor | None,
    top: torch.Tensor,
    total: torch.Tensor,
) -> torch.Tensor:
    """Gradient of the logits, in their dtype."""
    z = logits.float() if temperature is None else logits.float() / temperature[:, None]
    p = torch.exp(z - top[:, None]) / total[:, None]
    onehot = torch.zeros_like(p).scatter_(-1, targets.long()[:, None], 1.0)
    scale = grad if temperature is None else grad / temperature
    return ((onehot - p) * scale[:, None]).to(logits.dtype)
