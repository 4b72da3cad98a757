"""Backward of varlen attention in Triton: no atomics, so the same from run to run.

R query rows of a tile, N keys of a tile, D head size; lse is in base 2.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.kernels.ops.attention.layout import exponent_scale
from samebits.kernels.ops.attention.triton import find_sequence

BLOCK = 64


@triton.jit(do_not_specialize=["B"])
def query_grad_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    grad_ptr,
    dq_ptr,
    lse_ptr,
    delta_ptr,
    cu_ptr,
    c,
    scale,
    B,
    q_stride,
    k_stride,
    v_stride,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (head, query tile): the row's log-sum-exp in a first pass over its keys, the gradient of q in a
    second."""
    h = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    b = find_sequence(cu_ptr, tile, B, BLOCK)
    start = tl.load(cu_ptr + b)
    length = tl.load(cu_ptr + b + 1) - start
    local = (tile - (start // BLOCK + b)) * BLOCK
    if local >= length:
        return
    d = tl.arange(0, D)
    r = local + tl.arange(0, BLOCK)
    live_R = r < length
    token_R = (start + r).to(tl.int64)
    at_RD = (token_R * H + h)[:, None] * D + d[None, :]
    q_RD = tl.load(q_ptr + (token_R * q_stride + h * D)[:, None] + d[None, :], mask=live_R[:, None], other=0.0)
    grad_RD = tl.load(grad_ptr + at_RD, mask=live_R[:, None], other=0.0)
    m_R, l_R = tl.full((BLOCK,), float("-inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
    dot_R = l_R
    for first in range(0, local + BLOCK, BLOCK):
        n = first + tl.arange(0, BLOCK)
        key_N = (start + n).to(tl.int64)
        k_ND = tl.load(
            k_ptr + (key_N * k_stride + (h // GROUP) * D)[:, None] + d[None, :], mask=(n < length)[:, None], other=0.0
        )
        s_RN = tl.where(
            n[None, :] <= r[:, None], tl.dot(q_RD, tl.trans(k_ND), input_precision="ieee") * c, float("-inf")
        )
        v_ND = tl.load(
            v_ptr + (key_N * v_stride + (h // GROUP) * D)[:, None] + d[None, :], mask=(n < length)[:, None], other=0.0
        )
        dp_RN = tl.dot(grad_RD, tl.trans(v_ND), input_precision="ieee")
        new_m_R = tl.maximum(m_R, tl.max(s_RN, 1))
        p_RN = tl.exp2(s_RN - new_m_R[:, None])
        l_R = l_R * tl.exp2(m_R - new_m_R) + tl.sum(p_RN, 1)
        dot_R = dot_R * tl.exp2(m_R - new_m_R) + tl.sum(p_RN * dp_RN, 1)
        m_R = new_m_R
    # The sum of p dp in float32: grad . out would carry the rounding of out.
    lse_R, delta_R = m_R + tl.log2(l_R), dot_R / l_R
    tl.store(lse_ptr + token_R * H + h, lse_R, mask=live_R)
    tl.store(delta_ptr + token_R * H + h, delta_R, mask=live_R)
    dq_RD = tl.zeros((BLOCK, D), tl.float32)
    for first in range(0, local + BLOCK, BLOCK):
        n = first + tl.arange(0, BLOCK)
        key_N = (start + n).to(tl.int64)
        k_ND = tl.load(
            k_ptr + (key_N * k_stride + (h // GROUP) * D)[:, None] + d[None, :], mask=(n < length)[:, None], other=0.0
        )
        v_ND = tl.load(
            v_ptr + (key_N * v_stride + (h // GROUP) * D)[:, None] + d[None, :], mask=(n < length)[:, None], other=0.0
        )
        s_RN = tl.dot(q_RD, tl.trans(k_ND), input_precision="ieee") * c
        p_RN = tl.where(n[None, :] <= r[:, None], tl.exp2(s_RN - lse_R[:, None]), 0.0)
        ds_RN = p_RN * (tl.dot(grad_RD, tl.trans(v_ND), input_precision="ieee") - delta_R[:, None])
        dq_RD = tl.dot(ds_RN.to(k_ND.dtype), k_ND, dq_RD, input_precision="ieee")
    tl.store(dq_ptr + at_RD, (dq_RD * scale).to(dq_ptr.dtype.element_ty), mask=live_R[:, None])


@triton.jit(do_not_specialize=["B"])
def key_grad_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    grad_ptr,
    dk_ptr,
    dv_ptr,
    lse_ptr,
    delta_ptr,
    cu_ptr,
    c,
    scale,
    B,
    q_stride,
    k_stride,
    v_stride,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (key head, key tile): gradients of k and v over all later queries of all heads of the group, in one
    fixed order."""
    g = tl.program_id(0)
    tile = tl.program_id(1)
    b = find_sequence(cu_ptr, tile, B, BLOCK)
    start = tl.load(cu_ptr + b)
    length = tl.load(cu_ptr + b + 1) - start
    local = (tile - (start // BLOCK + b)) * BLOCK
    if local >= length:
        return
    d = tl.arange(0, D)
    n = local + tl.arange(0, BLOCK)
    key_N = (start + n).to(tl.int64)
    k_ND = tl.load(k_ptr + (key_N * k_stride + g * D)[:, None] + d[None, :], mask=(n < length)[:, None], other=0.0)
    v_ND = tl.load(v_ptr + (key_N * v_stride + g * D)[:, None] + d[None, :], mask=(n < length)[:, None], other=0.0)
    dk_ND, dv_ND = tl.zeros((BLOCK, D), tl.float32), tl.zeros((BLOCK, D), tl.float32)
    blocks = tl.cdiv(length - local, BLOCK)
    for step in range(blocks * GROUP):
        h = g * GROUP + step // blocks
        r = local + (step % blocks) * BLOCK + tl.arange(0, BLOCK)
        live_R = r < length
        token_R = (start + r).to(tl.int64)
        q_RD = tl.load(q_ptr + (token_R * q_stride + h * D)[:, None] + d[None, :], mask=live_R[:, None], other=0.0)
        grad_RD = tl.load(grad_ptr + (token_R * H + h)[:, None] * D + d[None, :], mask=live_R[:, None], other=0.0)
        lse_R = tl.load(lse_ptr + token_R * H + h, mask=live_R, other=0.0)
        delta_R = tl.load(delta_ptr + token_R * H + h, mask=live_R, other=0.0)
        s_NR = tl.dot(k_ND, tl.trans(q_RD), input_precision="ieee") * c
        p_NR = tl.where((n[:, None] <= r[None, :]) & live_R[None, :], tl.exp2(s_NR - lse_R[None, :]), 0.0)
        dv_ND = tl.dot(p_NR.to(grad_RD.dtype), grad_RD, dv_ND, input_precision="ieee")
        ds_NR = p_NR * (tl.dot(v_ND, tl.trans(grad_RD), input_precision="ieee") - delta_R[None, :])
        dk_ND = tl.dot(ds_NR.to(q_RD.dtype), q_RD, dk_ND, input_precision="ieee")
    at_ND = (key_N * (H // GROUP) + g)[:, None] * D + d[None, :]
    tl.store(dk_ptr + at_ND, (dk_ND * scale).to(dk_ptr.dtype.element_ty), mask=(n < length)[:, None])
    tl.store(dv_ptr + at_ND, dv_ND.to(dv_ptr.dtype.element_ty), mask=(n < length)[:, None])


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [T, H, D] and of k, v [T, G, D]; grad is [T, H, D]."""
    tokens, heads, size = q.shape
    key_heads, batch = k.shape[1], cu_seqlens.shape[0] - 1
    dq, dk, dv = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    if tokens == 0:
        return dq, dk, dv
    lse, delta = (torch.empty((tokens, heads), dtype=torch.float32, device=q.device) for _ in range(2))
    grad = grad.contiguous()
    tiles = tokens // BLOCK + batch
    numbers = (exponent_scale(scale), scale, batch, q.stride(0), k.stride(0), v.stride(0))
    sizes = {"H": heads, "GROUP": heads // key_heads, "D": size, "BLOCK": BLOCK, "num_warps": 4, "num_stages": 2}
    query_grad_kernel[(heads, tiles)](q, k, v, grad, dq, lse, delta, cu_seqlens, *numbers, **sizes)
    key_grad_kernel[(key_heads, tiles)](q, k, v, grad, dk, dv, lse, delta, cu_seqlens, *numbers, **sizes)
    return dq, dk, dv
