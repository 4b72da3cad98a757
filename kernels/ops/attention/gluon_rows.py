"""Prefill attention for Hopper (gluon.py): what one warpgroup does with the keys of an item, tile by tile.

An item: (first token of the sequence, first row of the block within the query, query length, key length, tiles, head).
base: tiles that the program has had before this item; they number the slots and phases of the barriers.
R query rows of a warpgroup, N keys of a tile, D head size.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from samebits.kernels.ops.attention.gluon_parts import (
    ROWS,
    TILE,
    finish,
    fold,
    give_turn,
    out_layout,
    rounded,
    score_layout,
    scores,
    seen,
    softmax_tile,
    turns,
    wait_turn,
)


@gluon.jit
def weights(state, total_smem, j, c, dtype: gl.constexpr, SEGMENT_TILES: gl.constexpr):
    """Softmax of tile j, whose scores are there; at a segment's start the fold of the one before."""
    acc_RD, s_RN, top_R, m_R, l_R, totals = state
    OUT: gl.constexpr = acc_RD.type.layout
    total_m_R, total_l_R = totals
    fresh = j % SEGMENT_TILES == 0
    from_m_R = gl.where(fresh, float("-inf"), m_R)
    from_l_R = gl.where(fresh, 0.0, l_R)
    wide_RN, new_m_R, new_l_R, alpha_R = softmax_tile(s_RN, top_R, c, from_m_R, from_l_R)
    p_RN = rounded(wide_RN, dtype, gl.DotOperandLayout(0, OUT, 2))
    if fresh & (j > 0):
        total_m_R, total_l_R, total_RD = fold(m_R, l_R, acc_RD, total_m_R, total_l_R, total_smem, OUT)
        total_smem.store(total_RD)
    else:
        acc_RD = acc_RD * gl.expand_dims(gl.convert_layout(alpha_R, gl.SliceLayout(1, OUT)), 1)
    return acc_RD, p_RN, new_m_R, new_l_R, (total_m_R, total_l_R)


@gluon.jit
def step(
    state,
    smem,
    bars,
    total_smem,
    position_R,
    base,
    j,
    c,
    SEGMENT_TILES: gl.constexpr,
    PART: gl.constexpr,
    MASK: gl.constexpr,
):
    """Weights of tile j; then the scores of tile j + 1 while the values of tile j are added. A segment's first product
    begins the accumulator."""
    queries, k_smem, v_smem = smem
    k_full, v_full, free = bars
    STAGES: gl.constexpr = k_smem.shape[0]
    TURNS: gl.constexpr = turns(state[0].shape[1])
    i = base + j
    slot, after = i % STAGES, (i + 1) % STAGES
    acc_RD, p_RN, m_R, l_R, totals = weights(state, total_smem, j, c, v_smem.dtype, SEGMENT_TILES)
    mbarrier.wait(k_full.index(after), ((i + 1) // STAGES) & 1)
    if TURNS:
        wait_turn(PART)
    s_token = scores(queries, k_smem.index(after))
    mbarrier.wait(v_full.index(slot), (i // STAGES) & 1)
    begun = j % SEGMENT_TILES != 0
    acc_token = warpgroup_mma(p_RN, v_smem.index(slot), acc_RD, use_acc=begun, is_async=True)
    if TURNS:
        give_turn(PART)
    s_RN = warpgroup_mma_wait(1, deps=[s_token])
    if MASK:
        s_RN = seen(s_RN, position_R, j + 1)
    top_R = gl.max(s_RN, 1)
    acc_RD = warpgroup_mma_wait(0, deps=[acc_token])
    mbarrier.arrive(free.index(after), count=1)
    return acc_RD, s_RN, top_R, m_R, l_R, totals


@gluon.jit
def begin(smem, total_smem, bars, item, base, c, D: gl.constexpr, SEGMENT_TILES: gl.constexpr, PART: gl.constexpr):
    """The rows of a warpgroup up to the scores of their last tile: the state from which `end` goes on. The queries are
    not read after it. Of two warpgroups each holds them in registers, of three it leaves them in shared memory."""
    S: gl.constexpr = score_layout()
    OUT: gl.constexpr = out_layout(D)
    q_all, k_smem, v_smem = smem
    k_full, _, free = bars
    _, local, q_len, kv_len, tiles, _ = item
    STAGES: gl.constexpr = k_smem.shape[0]
    first = local + PART * ROWS
    position_R = kv_len - q_len + first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, S))
    full = (kv_len - q_len + first + 1) // TILE
    total_smem.store(gl.zeros([ROWS, D], gl.float32, OUT))
    m_R = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S))
    l_R = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S))
    mbarrier.wait(k_full.index(base % STAGES), (base // STAGES) & 1)
    queries = q_all.index(PART).load(gl.DotOperandLayout(0, S, 2)) if turns(D) else q_all.index(PART)
    smem = (queries, k_smem, v_smem)
    s_RN = warpgroup_mma_wait(0, deps=[scores(queries, k_smem.index(base % STAGES))])
    mbarrier.arrive(free.index(base % STAGES), count=1)
    if full < 1:
        s_RN = seen(s_RN, position_R, 0)
    state = (gl.zeros([ROWS, D], gl.float32, OUT), s_RN, gl.max(s_RN, 1), m_R, l_R, (m_R, l_R))
    bound = gl.maximum(gl.minimum(full, tiles) - 1, 0)
    for j in range(bound):
        state = step(state, smem, bars, total_smem, position_R, base, j, c, SEGMENT_TILES, PART, False)
    for j in range(bound, tiles - 1):
        state = step(state, smem, bars, total_smem, position_R, base, j, c, SEGMENT_TILES, PART, True)
    return state


@gluon.jit
def end(state, total_smem, bars, v_smem, item, base, c, SEGMENT_TILES: gl.constexpr):
    """Weights and values of the last tile and the last fold: the output in float32."""
    _, v_full, _ = bars
    _, _, _, kv_len, tiles, _ = item
    STAGES: gl.constexpr = v_smem.shape[0]
    last = tiles - 1
    acc_RD, p_RN, m_R, l_R, totals = weights(state, total_smem, last, c, v_smem.dtype, SEGMENT_TILES)
    slot = (base + last) % STAGES
    v_last = (v_full.index(slot), ((base + last) // STAGES) & 1)
    valid, begun = kv_len - last * TILE, last % SEGMENT_TILES != 0
    return finish(p_RN, m_R, l_R, acc_RD, totals, total_smem, v_smem.index(slot), v_last, valid, begun)
