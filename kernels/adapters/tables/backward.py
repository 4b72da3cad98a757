"""Backward passes in plain PyTorch, for operators whose forward is a foreign kernel.

Each recomputes what it needs in float32 from the operator's inputs and rounds once, to the dtype of the input.

Legend: see operators.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from samebits.kernels.adapters.tables.pack import Pack


def linear(
    grad_TN: torch.Tensor, x_TK: torch.Tensor, weight_NK: torch.Tensor, bias: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gradients of x, weight and bias, as torch's own linear gives them."""
    return grad_TN @ weight_NK, grad_TN.t() @ x_TK, grad_TN.sum(0) if bias else None


def rotary(grad: torch.Tensor, table_PE: torch.Tensor, pack: Pack) -> torch.Tensor:
    """The gradient turned back by the same angles. grad [T, heads, E]."""
    cos, sin = (half[:, None] for half in table_PE[pack.position_T].float().chunk(2, -1))
    low, high = grad.float().chunk(2, -1)
    return torch.cat([low * cos + high * sin, high * cos - low * sin], -1).to(grad.dtype)


def attention(
    grad_THE: torch.Tensor, q_THE: torch.Tensor, k_TGE: torch.Tensor, v_TGE: torch.Tensor, scale: float, pack: Pack
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k, v: softmax recomputed in float32, one sequence at a time."""
    grads = tuple(torch.empty_like(x) for x in (q_THE, k_TGE, v_TGE))
    repeat = q_THE.shape[1] // k_TGE.shape[1]
    for first, last in pack.spans:
        with torch.enable_grad():
            wide = [x[first:last].detach().float().requires_grad_() for x in (q_THE, k_TGE, v_TGE)]
            k, v = (x.repeat_interleave(repeat, 1) for x in wide[1:])
            score = torch.einsum("qhe,khe->hqk", wide[0], k) * scale
            later = torch.ones(last - first, last - first, dtype=torch.bool, device=score.device).triu(1)
            out = torch.einsum("hqk,khe->qhe", score.masked_fill(later, float("-inf")).softmax(-1), v)
        for whole, part in zip(grads, torch.autograd.grad(out, wide, grad_THE[first:last].float()), strict=True):
            whole[first:last] = part.to(whole.dtype)
    return grads[0], grads[1], grads[2]


def experts(
    grad_TD: torch.Tensor,
    x_TD: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weight_TR: torch.Tensor,
    id_TR: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x, gate_up, down and the routing weights; the choice of experts has none."""
    inputs = (x_TD, gate_up, down, weight_TR)
    with torch.enable_grad():
        wide = [x.detach().float().requires_grad_() for x in inputs]
        out = torch.zeros_like(wide[0])
        for expert in torch.unique(id_TR).tolist():
            row, slot = torch.where(id_TR == expert)
            gate, up = F.linear(wide[0][row], wide[1][expert]).chunk(2, -1)
            one = F.linear(F.silu(gate) * up, wide[2][expert])
            out = out.index_add(0, row, one * wide[3][row, slot, None])
    grads = torch.autograd.grad(out, wide, grad_TD.float(), allow_unused=False)
    return tuple(grad.to(x.dtype) for grad, x in zip(grads, inputs, strict=True))  # type: ignore[return-value]
