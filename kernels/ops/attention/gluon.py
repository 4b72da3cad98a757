"""Prefill attention for Hopper in Gluon: the arithmetic of `prefill_kernel` in triton.py, bit for bit.

One producer warp moves keys and values by TMA to consumer warpgroups of 64 query rows each: two at head 128, three at
head 64. Each overlaps the score product of the next tile with the value product of the last one; the two start their
products in turn. The folded total of earlier segments waits in shared memory.
R query rows of a warpgroup, N keys of a tile, D head size.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from samebits.kernels.ops.attention.gluon_parts import (
    PANEL,
    ROWS,
    TILE,
    find_sequence,
    finish,
    fold,
    give_turn,
    load_tile,
    out_layout,
    parts,
    rounded,
    score_layout,
    scores,
    seen,
    softmax_tile,
    stages,
    store_rows,
    total_layout,
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
    state, smem, bars, total_smem, position_R, j, c, SEGMENT_TILES: gl.constexpr, PART: gl.constexpr, MASK: gl.constexpr
):
    """Weights of tile j; then the scores of tile j + 1 while the values of tile j are added. A segment's first product
    begins the accumulator."""
    queries, k_smem, v_smem = smem
    k_full, v_full, free = bars
    STAGES: gl.constexpr = k_smem.shape[0]
    TURNS: gl.constexpr = state[0].shape[1] == 128
    slot, after = j % STAGES, (j + 1) % STAGES
    acc_RD, p_RN, m_R, l_R, totals = weights(state, total_smem, j, c, v_smem.dtype, SEGMENT_TILES)
    mbarrier.wait(k_full.index(after), ((j + 1) // STAGES) & 1)
    if TURNS:
        wait_turn(PART)
    s_token = scores(queries, k_smem.index(after))
    mbarrier.wait(v_full.index(slot), (j // STAGES) & 1)
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
def consumer(smem, total_smem, q_full, bars, item, c, D: gl.constexpr, SEGMENT_TILES: gl.constexpr, PART: gl.constexpr):
    """One warpgroup. Of two it holds its queries in registers, of three it leaves them in shared memory."""
    S: gl.constexpr = score_layout()
    OUT: gl.constexpr = out_layout(D)
    q_all, k_smem, v_smem = smem
    k_full, v_full, free = bars
    out_ptr, start, local, q_len, kv_len, tiles, h, H = item
    STAGES: gl.constexpr = k_smem.shape[0]
    PARTS: gl.constexpr = q_all.shape[0]
    first = local + PART * ROWS
    if PARTS == 3:
        # The first warpgroup may be through one tile earlier; the producer does not wait for its last ones.
        tiles = gl.minimum(tiles, gl.cdiv(kv_len - q_len + first + ROWS, TILE))
    position_R = kv_len - q_len + first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, S))
    full = (kv_len - q_len + first + 1) // TILE
    total_smem.store(gl.zeros([ROWS, D], gl.float32, OUT))
    m_R = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S))
    l_R = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S))
    mbarrier.wait(q_full, 0)
    mbarrier.wait(k_full.index(0), 0)
    queries = q_all.index(PART).load(gl.DotOperandLayout(0, S, 2)) if PARTS == 2 else q_all.index(PART)
    smem = (queries, k_smem, v_smem)
    s_RN = warpgroup_mma_wait(0, deps=[scores(queries, k_smem.index(0))])
    mbarrier.arrive(free.index(0), count=1)
    if full < 1:
        s_RN = seen(s_RN, position_R, 0)
    state = (gl.zeros([ROWS, D], gl.float32, OUT), s_RN, gl.max(s_RN, 1), m_R, l_R, (m_R, l_R))
    bound = gl.maximum(gl.minimum(full, tiles) - 1, 0)
    if PARTS == 2 and PART == 1:
        give_turn(PART)
    for j in range(bound):
        state = step(state, smem, bars, total_smem, position_R, j, c, SEGMENT_TILES, PART, False)
    for j in range(bound, tiles - 1):
        state = step(state, smem, bars, total_smem, position_R, j, c, SEGMENT_TILES, PART, True)
    if PARTS == 2 and PART == 0:
        wait_turn(PART)
    last = tiles - 1
    acc_RD, p_RN, m_R, l_R, totals = weights(state, total_smem, last, c, v_smem.dtype, SEGMENT_TILES)
    v_last = (v_full.index(last % STAGES), (last // STAGES) & 1)
    valid, begun = kv_len - last * TILE, last % SEGMENT_TILES != 0
    out_RD = finish(p_RN, m_R, l_R, acc_RD, totals, total_smem, v_smem.index(last % STAGES), v_last, valid, begun)
    store_rows(out_RD, q_all.index(PART), out_ptr, start, first, q_len, h, H)


@gluon.jit
def producer(
    q_desc, k_from, v_from, smem, q_full, bars, table_ptr, kv_start, item, D: gl.constexpr, PAGE: gl.constexpr
):
    """The queries, then keys and values tile by tile into freed slots. k_from, v_from: see `load_tile`."""
    q_all, k_smem, v_smem = smem
    k_full, v_full, free = bars
    _, start, local, _, kv_len, tiles, h, _ = item
    STAGES: gl.constexpr = k_smem.shape[0]
    BOX: gl.constexpr = k_from[0].block_shape[0]
    BOXES: gl.constexpr = (TILE // BOX) * (D // PANEL)
    PARTS: gl.constexpr = q_all.shape[0]
    mbarrier.expect(q_full, PARTS * ROWS * D * 2)
    for part in gl.static_range(PARTS):
        tma.async_copy_global_to_shared(q_desc, [start + local + part * ROWS, h * D], q_full, q_all.index(part))
    k_boxes = k_smem._reinterpret(k_smem.dtype, [STAGES * BOXES, BOX, PANEL], k_from[0].layout)
    v_boxes = v_smem._reinterpret(v_smem.dtype, [STAGES * BOXES, BOX, PANEL], v_from[0].layout)
    for j in range(gl.minimum(tiles, STAGES)):
        load_tile(k_from, k_boxes, j * BOXES, k_full.index(j), table_ptr, j, kv_start, kv_len, D, PAGE)
        load_tile(v_from, v_boxes, j * BOXES, v_full.index(j), table_ptr, j, kv_start, kv_len, D, PAGE)
    # The consumers free keys of tile j and values of tile j - 1 at once.
    for j in range(gl.maximum(tiles - STAGES + 1, 0)):
        slot, other = j % STAGES, (j - 1 + STAGES) % STAGES
        k_bar, v_bar = k_full.index(slot), v_full.index(other)
        mbarrier.wait(free.index(slot), (j // STAGES) & 1)
        n = j + STAGES
        if n < tiles:
            load_tile(k_from, k_boxes, slot * BOXES, k_bar, table_ptr, n, kv_start, kv_len, D, PAGE)
        n = j + STAGES - 1
        if (j > 0) & (n < tiles):
            load_tile(v_from, v_boxes, other * BOXES, v_bar, table_ptr, n, kv_start, kv_len, D, PAGE)


@gluon.jit(do_not_specialize=["B", "table_stride", "k_ratio", "v_ratio", "k_head", "v_head", "H", "GROUP", "LEAVE"])
def prefill_hopper_kernel(
    q_desc,
    k_desc,
    v_desc,
    out_ptr,
    table_ptr,
    cu_ptr,
    kv_cu_ptr,
    len_ptr,
    c,
    B,
    table_stride,
    k_ratio,
    v_ratio,
    k_head,
    v_head,
    H,
    GROUP,
    LEAVE,
    D: gl.constexpr,
    PAGE: gl.constexpr,
    SEGMENT_TILES: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Program (head of a section, block of query tokens, section of heads), the longest block first.

    LEAVE: rows up to which decode has the sequence.
    """
    PARTS: gl.constexpr = parts(D)
    BLOCK: gl.constexpr = PARTS * ROWS
    h = gl.program_id(2) * gl.num_programs(0) + gl.program_id(0)
    tile_q = gl.num_programs(1) - 1 - gl.program_id(1)
    b = find_sequence(cu_ptr, tile_q, B, BLOCK)
    start = gl.load(cu_ptr + b)
    q_len = gl.load(cu_ptr + b + 1) - start
    kv_len = gl.load(len_ptr + b)
    local = (tile_q - (start // BLOCK + b)) * BLOCK
    if (local < q_len) & (q_len * GROUP > LEAVE):
        tiles = gl.cdiv(gl.minimum(kv_len, kv_len - q_len + local + BLOCK), TILE)
        dtype: gl.constexpr = q_desc.dtype
        STAGES: gl.constexpr = stages(D)
        wide: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
        q_all = gl.allocate_shared_memory(dtype, [PARTS, ROWS, D], q_desc.layout)
        k_smem = gl.allocate_shared_memory(dtype, [STAGES, TILE, D], wide)
        v_smem = gl.allocate_shared_memory(dtype, [STAGES, TILE, D], wide)
        smem = (q_all, k_smem, v_smem)
        total_0 = gl.allocate_shared_memory(gl.float32, [ROWS, D], total_layout(D))
        total_1 = gl.allocate_shared_memory(gl.float32, [ROWS, D], total_layout(D))
        q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        mbarrier.init(q_full, count=1)
        for i in gl.static_range(STAGES):
            mbarrier.init(k_full.index(i), count=1)
            mbarrier.init(v_full.index(i), count=1)
            mbarrier.init(free.index(i), count=PARTS)
        fence_async_shared()
        bars = (k_full, v_full, free)
        item = (out_ptr, start, local, q_len, kv_len, tiles, h, H)
        table = table_ptr + b.to(gl.int64) * table_stride
        g = h // GROUP
        k_from, v_from = (k_desc, g * k_head, k_ratio), (v_desc, g * v_head, v_ratio)
        kv_start = gl.load(kv_cu_ptr + b)
        if PARTS == 2:
            gl.warp_specialize(
                [
                    (consumer, (smem, total_0, q_full, bars, item, c, D, SEGMENT_TILES, 0)),
                    (consumer, (smem, total_1, q_full, bars, item, c, D, SEGMENT_TILES, 1)),
                    (producer, (q_desc, k_from, v_from, smem, q_full, bars, table, kv_start, item, D, PAGE)),
                ],
                [4, 1],
                [240, 24],
            )
        else:
            total_2 = gl.allocate_shared_memory(gl.float32, [ROWS, D], total_layout(D))
            gl.warp_specialize(
                [
                    (consumer, (smem, total_0, q_full, bars, item, c, D, SEGMENT_TILES, 0)),
                    (consumer, (smem, total_1, q_full, bars, item, c, D, SEGMENT_TILES, 1)),
                    (consumer, (smem, total_2, q_full, bars, item, c, D, SEGMENT_TILES, 2)),
                    (producer, (q_desc, k_from, v_from, smem, q_full, bars, table, kv_start, item, D, PAGE)),
                ],
                [4, 4, 1],
                [160, 160, 24],
            )
