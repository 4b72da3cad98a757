"""The bits of paged attention: on CPU plain PyTorch, on CUDA the plainest Triton kernel (contract_triton.py).

T query tokens, H query heads, G key heads, D head size, N keys of a tile.
"""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.kernels.ops.attention.checks import check
from samebits.kernels.ops.attention.layout import SEGMENT_TILES, TILE, exponent_scale
from samebits.kernels.ops.attention.reference import keys_of

UNIT = 2.0**-22
State = tuple[Tensor, Tensor, Tensor]
"""(maximum [T, H], sum [T, H], accumulator [T, H, D]), float32."""


def contract(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
) -> Tensor:
    """Arguments of op.attention: [T, H, D] in the dtype of q."""
    check(q, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens, scale)
    if q.is_cuda:
        from samebits.kernels.ops.attention.contract_triton import contract_cuda

        return contract_cuda(q, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens, scale)
    out = torch.zeros(q.shape, dtype=q.dtype)
    starts, lengths = cu_seqlens_q.tolist(), seq_lens.tolist()
    for b, length in enumerate(lengths):
        rows = slice(starts[b], starts[b + 1])
        if rows.start < rows.stop:
            k, v = (keys_of(cache, block_table, b, length) for cache in (k_cache, v_cache))
            out[rows] = _sequence(q[rows], k, v, exponent_scale(scale))
    return out


def _sequence(q_THD: Tensor, k_NGD: Tensor, v_NGD: Tensor, c: float) -> Tensor:
    """All rows of one sequence at once, with elementwise operations only, so no row can depend on another."""
    length, tokens = k_NGD.shape[0], q_THD.shape[0]
    position_T = torch.arange(length - tokens, length)
    total = state = _empty(q_THD)
    tiles = -(-length // TILE)
    for tile in range(tiles):
        keys = slice(tile * TILE, min((tile + 1) * TILE, length))
        hidden_TN = torch.arange(keys.start, keys.stop)[None, :] > position_T[:, None]
        state = _tile(q_THD, k_NGD[keys], v_NGD[keys], hidden_TN, c, state)
        if tile % SEGMENT_TILES == SEGMENT_TILES - 1 or tile == tiles - 1:
            total, state = _fold(total, state), _empty(q_THD)
    return (total[2] / total[1][..., None]).to(q_THD.dtype)


def _empty(q_THD: Tensor) -> State:
    rows = q_THD.shape[:2]
    return torch.full(rows, float("-inf")), torch.zeros(rows), torch.zeros(q_THD.shape)


def _tile(q_THD: Tensor, k_NGD: Tensor, v_NGD: Tensor, hidden_TN: Tensor, c: float, state: State) -> State:
    m_TH, l_TH, acc_THD = state
    group = q_THD.shape[1] // k_NGD.shape[1]
    k_HDN = k_NGD.float().repeat_interleave(group, 1).permute(1, 2, 0).contiguous()
    s_THN = torch.zeros(*q_THD.shape[:2], k_NGD.shape[0])
    for d in range(q_THD.shape[2]):
        s_THN += q_THD[:, :, d, None].float() * k_HDN[None, :, d]
    s_THN = s_THN.masked_fill(hidden_TN[:, None, :], float("-inf"))
    c32 = torch.tensor(c, dtype=torch.float32)
    new_m_TH = torch.maximum(m_TH, s_THN.amax(-1) * c32)
    base_TH = torch.where(new_m_TH == float("-inf"), 0.0, new_m_TH)
    p_THN = _exp2(_fma(s_THN, c32, -base_TH[..., None]))
    alpha_TH = _exp2(m_TH - base_TH)
    counts_THN = (p_THN + 2.0).view(torch.int32) - 0x40000000
    l_TH = _fma(l_TH, alpha_TH, counts_THN.sum(-1).float() * UNIT)
    acc_THD = acc_THD * alpha_TH[..., None]
    v_NHD = v_NGD.float().repeat_interleave(group, 1)
    for n, weight_TH in enumerate(p_THN.to(q_THD.dtype).float().unbind(-1)):
        acc_THD = acc_THD + weight_TH[..., None] * v_NHD[n]
    return new_m_TH, l_TH, acc_THD


def _fold(total: State, state: State) -> State:
    m_TH, l_TH, acc_THD = state
    total_m_TH, total_l_TH, total_THD = total
    new_m_TH = torch.maximum(total_m_TH, m_TH)
    base_TH = torch.where(new_m_TH == float("-inf"), 0.0, new_m_TH)
    old_TH, add_TH = _exp2(total_m_TH - base_TH), _exp2(m_TH - base_TH)
    seen_TH = m_TH != float("-inf")
    total_l_TH = torch.where(seen_TH, _fma(total_l_TH, old_TH, l_TH * add_TH), total_l_TH)
    folded_THD = _fma(total_THD, old_TH[..., None], acc_THD * add_TH[..., None])
    total_THD = torch.where(seen_TH[..., None], folded_THD, total_THD)
    return new_m_TH, total_l_TH, total_THD


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c, in float64 and rounded to float32: stands for the GPU's fused multiply-add."""
    return (a.double() * b.double() + c.double()).float()


def _exp2(x: Tensor) -> Tensor:
    """2 to the x, correctly rounded but for one value in 2^29; every element alike wherever it stands."""
    return torch.exp2(x.double()).float()
