"""Prefill attention for Hopper in Gluon: the arithmetic of `prefill_kernel` in triton.py, bit for bit.

One producer warp moves keys and values by TMA; two consumer warpgroups of 64 query rows each overlap the score
product of the next tile with the value product of the last one. The folded total of earlier segments waits in shared
memory.
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

STAGES = gl.constexpr(2)
ROWS = gl.constexpr(64)
TILE = gl.constexpr(128)
PANEL = gl.constexpr(64)
"""Columns of a 128-byte swizzled panel of 16-bit elements."""


@gluon.jit
def find_sequence(cu_ptr, tile, B, BLOCK: gl.constexpr):
    low, high = 0, B
    while low < high:
        middle = (low + high) // 2
        if gl.load(cu_ptr + middle) // BLOCK + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@gluon.jit
def softmax_tile(s_RN, c, m_R, l_R):
    """Probabilities of a tile, and maximum, sum and rescale of the segment; see README.md."""
    new_m_R = gl.maximum(m_R, gl.max(s_RN, 1) * c)
    base_R = gl.where(new_m_R == float("-inf"), 0.0, new_m_R)
    minus_RN = gl.expand_dims(0.0 - base_R, 1) + gl.zeros_like(s_RN)
    p_RN = gl.exp2(gl.fma(s_RN, gl.zeros_like(s_RN) + c, minus_RN))
    alpha_R = gl.exp2(m_R - base_R)
    counts_R = gl.sum((p_RN + 2.0).to(gl.int32, bitcast=True) - 0x40000000, 1)
    l_R = gl.fma(l_R, alpha_R, counts_R.to(gl.float32) * 2.384185791015625e-07)
    return p_RN, new_m_R, l_R, alpha_R


@gluon.jit
def rounded(p_RN, dtype: gl.constexpr, P: gl.constexpr):
    """p in the dtype of the values, two neighbours packed by one instruction: the compiler swaps them once more."""
    if dtype == gl.bfloat16:
        packed_RN = gl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [p_RN], dtype=gl.bfloat16, is_pure=True, pack=2
        )
    else:
        packed_RN = gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [p_RN], dtype=gl.float16, is_pure=True, pack=2
        )
    return gl.convert_layout(packed_RN, P)


@gluon.jit
def fold(m_R, l_R, acc_RD, total_m_R, total_l_R, total_smem, OUT: gl.constexpr):
    """The segment's state onto the total in shared memory; returns maximum and sum of the total and its accumulator."""
    new_m_R = gl.maximum(total_m_R, m_R)
    base_R = gl.where(new_m_R == float("-inf"), 0.0, new_m_R)
    old_R, add_R = gl.exp2(total_m_R - base_R), gl.exp2(m_R - base_R)
    seen_R = m_R != float("-inf")
    total_l_R = gl.where(seen_R, gl.fma(total_l_R, old_R, l_R * add_R), total_l_R)
    old_O = gl.expand_dims(gl.convert_layout(old_R, gl.SliceLayout(1, OUT)), 1)
    add_O = gl.expand_dims(gl.convert_layout(add_R, gl.SliceLayout(1, OUT)), 1)
    seen_O = gl.expand_dims(gl.convert_layout(m_R, gl.SliceLayout(1, OUT)), 1) != float("-inf")
    total_RD = total_smem.load(OUT)
    total_RD = gl.where(seen_O, gl.fma(total_RD, gl.zeros_like(total_RD) + old_O, acc_RD * add_O), total_RD)
    return new_m_R, total_l_R, total_RD


@gluon.jit
def clear_tail(v_smem, valid):
    """Zero the rows of a value tile past the sequence: they may hold anything, and 0 * NaN is NaN."""
    V: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row_N = gl.arange(0, v_smem.shape[0], layout=gl.SliceLayout(1, V))
    v_ND = v_smem.load(V)
    v_smem.store(gl.where(gl.expand_dims(row_N, 1) < valid, v_ND, gl.zeros_like(v_ND)))
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def step(
    q_smem,
    k_smem,
    v_smem,
    bars,
    acc_RD,
    p_RN,
    m_R,
    l_R,
    total_m_R,
    total_l_R,
    total_smem,
    position_R,
    j,
    kv_len,
    c,
    SEGMENT_TILES: gl.constexpr,
    MASK: gl.constexpr,
    S: gl.constexpr,
    OUT: gl.constexpr,
    P: gl.constexpr,
):
    """Scores of tile j while the values of tile j - 1 are added; then its softmax, and at a segment's start the
    fold."""
    k_full, v_full, free = bars
    slot, last = j % STAGES, (j - 1) % STAGES
    mbarrier.wait(k_full.index(slot), (j // STAGES) & 1)
    s_token = warpgroup_mma(
        q_smem, k_smem.index(slot).permute((1, 0)), gl.zeros([ROWS, TILE], gl.float32, S), use_acc=False, is_async=True
    )
    mbarrier.wait(v_full.index(last), ((j - 1) // STAGES) & 1)
    acc_token = warpgroup_mma(p_RN, v_smem.index(last), acc_RD, is_async=True)
    s_RN = warpgroup_mma_wait(1, deps=[s_token])
    if MASK:
        n_N = j * TILE + gl.arange(0, TILE, layout=gl.SliceLayout(0, S))
        s_RN = gl.where(gl.expand_dims(n_N, 0) <= gl.expand_dims(position_R, 1), s_RN, float("-inf"))
    fresh = j % SEGMENT_TILES == 0
    from_m_R = gl.where(fresh, float("-inf"), m_R)
    from_l_R = gl.where(fresh, 0.0, l_R)
    wide_RN, new_m_R, new_l_R, alpha_R = softmax_tile(s_RN, c, from_m_R, from_l_R)
    acc_RD = warpgroup_mma_wait(0, deps=[acc_token])
    mbarrier.arrive(free.index(slot), count=1)
    p_RN = rounded(wide_RN, v_smem.dtype, P)
    if fresh:
        total_m_R, total_l_R, total_RD = fold(m_R, l_R, acc_RD, total_m_R, total_l_R, total_smem, OUT)
        total_smem.store(total_RD)
        acc_RD = gl.zeros_like(acc_RD)
    else:
        acc_RD = acc_RD * gl.expand_dims(gl.convert_layout(alpha_R, gl.SliceLayout(1, OUT)), 1)
    return acc_RD, p_RN, new_m_R, new_l_R, total_m_R, total_l_R


@gluon.jit
def consumer(
    q_all,
    k_smem,
    v_smem,
    total_all,
    q_full,
    bars,
    out_ptr,
    c,
    start,
    local,
    q_len,
    kv_len,
    tiles,
    h,
    H,
    D: gl.constexpr,
    SEGMENT_TILES: gl.constexpr,
    PART: gl.constexpr,
):
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    k_full, v_full, free = bars
    row_R = local + PART * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, S))
    position_R = kv_len - q_len + row_R
    full = (kv_len - q_len + local + PART * ROWS + 1) // TILE
    q_smem, total_smem = q_all.index(PART), total_all.index(PART)
    total_smem.store(gl.zeros([ROWS, D], gl.float32, OUT))
    m_R = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S))
    l_R = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S))
    total_m_R, total_l_R = m_R, l_R
    mbarrier.wait(q_full, 0)
    mbarrier.wait(k_full.index(0), 0)
    s_RN = warpgroup_mma(
        q_smem, k_smem.index(0).permute((1, 0)), gl.zeros([ROWS, TILE], gl.float32, S), use_acc=False, is_async=True
    )
    s_RN = warpgroup_mma_wait(0, deps=[s_RN])
    mbarrier.arrive(free.index(0), count=1)
    n_N = gl.arange(0, TILE, layout=gl.SliceLayout(0, S))
    s_RN = gl.where(gl.expand_dims(n_N, 0) <= gl.expand_dims(position_R, 1), s_RN, float("-inf"))
    wide_RN, m_R, l_R, _ = softmax_tile(s_RN, c, m_R, l_R)
    p_RN = rounded(wide_RN, v_smem.dtype, P)
    acc_RD = gl.zeros([ROWS, D], gl.float32, OUT)
    for j in range(1, gl.minimum(full, tiles)):
        acc_RD, p_RN, m_R, l_R, total_m_R, total_l_R = step(
            q_smem,
            k_smem,
            v_smem,
            bars,
            acc_RD,
            p_RN,
            m_R,
            l_R,
            total_m_R,
            total_l_R,
            total_smem,
            position_R,
            j,
            kv_len,
            c,
            SEGMENT_TILES,
            False,
            S,
            OUT,
            P,
        )
    for j in range(gl.maximum(gl.minimum(full, tiles), 1), tiles):
        acc_RD, p_RN, m_R, l_R, total_m_R, total_l_R = step(
            q_smem,
            k_smem,
            v_smem,
            bars,
            acc_RD,
            p_RN,
            m_R,
            l_R,
            total_m_R,
            total_l_R,
            total_smem,
            position_R,
            j,
            kv_len,
            c,
            SEGMENT_TILES,
            True,
            S,
            OUT,
            P,
        )
    slot = (tiles - 1) % STAGES
    mbarrier.wait(v_full.index(slot), ((tiles - 1) // STAGES) & 1)
    if tiles * TILE > kv_len:
        clear_tail(v_smem.index(slot), kv_len - (tiles - 1) * TILE)
    acc_RD = warpgroup_mma(p_RN, v_smem.index(slot), acc_RD, is_async=True)
    acc_RD = warpgroup_mma_wait(0, deps=[acc_RD])
    total_m_R, total_l_R, total_RD = fold(m_R, l_R, acc_RD, total_m_R, total_l_R, total_smem, OUT)
    out_RD = total_RD / gl.expand_dims(gl.convert_layout(total_l_R, gl.SliceLayout(1, OUT)), 1)
    row_O = local + PART * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, OUT))
    d_O = gl.arange(0, D, layout=gl.SliceLayout(0, OUT))
    at = ((start + row_O).to(gl.int64) * H + h) * D
    gl.store(
        out_ptr + gl.expand_dims(at, 1) + gl.expand_dims(d_O, 0),
        out_RD.to(out_ptr.dtype.element_ty),
        mask=gl.expand_dims(row_O < q_len, 1),
    )


@gluon.jit
def load_tile(
    desc,
    boxes,
    first_box,
    bar,
    table_ptr,
    j,
    first_row,
    kv_len,
    column,
    ratio,
    D: gl.constexpr,
    PAGE: gl.constexpr,
    BOX: gl.constexpr,
):
    """One tile of keys or values into its slot: boxes of BOX rows x PANEL columns.

    PAGE 0: rows lie side by side from first_row on.
    """
    mbarrier.expect(bar, TILE * D * 2)
    for i in gl.static_range(TILE // BOX):
        n = j * TILE + i * BOX
        if PAGE == 0:
            row = first_row + n
        else:
            page = gl.load(table_ptr + gl.minimum(n, kv_len - 1) // PAGE)
            row = page * ratio + n % PAGE
        for panel in gl.static_range(D // PANEL):
            box = boxes.index(first_box + panel * (TILE // BOX) + i)
            tma.async_copy_global_to_shared(desc, [row, column + panel * PANEL], bar, box)


@gluon.jit
def producer(
    q_desc,
    k_desc,
    v_desc,
    q_all,
    k_smem,
    v_smem,
    q_full,
    bars,
    table_ptr,
    start,
    local,
    kv_start,
    kv_len,
    tiles,
    h,
    g,
    k_ratio,
    v_ratio,
    k_head,
    v_head,
    D: gl.constexpr,
    PAGE: gl.constexpr,
    BOX: gl.constexpr,
):
    k_full, v_full, free = bars
    BOXES: gl.constexpr = (TILE // BOX) * (D // PANEL)
    mbarrier.expect(q_full, 2 * ROWS * D * 2)
    for part in gl.static_range(2):
        tma.async_copy_global_to_shared(q_desc, [start + local + part * ROWS, h * D], q_full, q_all.index(part))
    k_boxes = k_smem._reinterpret(k_smem.dtype, [STAGES * BOXES, BOX, PANEL], k_desc.layout)
    v_boxes = v_smem._reinterpret(v_smem.dtype, [STAGES * BOXES, BOX, PANEL], v_desc.layout)
    k_at, v_at = g * k_head, g * v_head
    for j in range(gl.minimum(tiles, STAGES)):
        k_bar, v_bar = k_full.index(j), v_full.index(j)
        load_tile(k_desc, k_boxes, j * BOXES, k_bar, table_ptr, j, kv_start, kv_len, k_at, k_ratio, D, PAGE, BOX)
        load_tile(v_desc, v_boxes, j * BOXES, v_bar, table_ptr, j, kv_start, kv_len, v_at, v_ratio, D, PAGE, BOX)
    # The consumers free keys of tile j and values of tile j - 1 at once.
    for j in range(tiles - 1):
        slot, other = j % STAGES, (j + 1) % STAGES
        k_bar, v_bar = k_full.index(slot), v_full.index(other)
        mbarrier.wait(free.index(slot), (j // STAGES) & 1)
        n = j + STAGES
        if n < tiles:
            load_tile(k_desc, k_boxes, slot * BOXES, k_bar, table_ptr, n, kv_start, kv_len, k_at, k_ratio, D, PAGE, BOX)
        n = j + 1
        if j > 0:
            load_tile(
                v_desc, v_boxes, other * BOXES, v_bar, table_ptr, n, kv_start, kv_len, v_at, v_ratio, D, PAGE, BOX
            )


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
    BOX: gl.constexpr,
    SEGMENT_TILES: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Program (head, tile of 128 query tokens), the longest first. LEAVE: rows up to which decode has the sequence."""
    BLOCK: gl.constexpr = 2 * ROWS
    h = gl.program_id(0)
    tile_q = gl.num_programs(1) - 1 - gl.program_id(1)
    b = find_sequence(cu_ptr, tile_q, B, BLOCK)
    start = gl.load(cu_ptr + b)
    q_len = gl.load(cu_ptr + b + 1) - start
    kv_len = gl.load(len_ptr + b)
    local = (tile_q - (start // BLOCK + b)) * BLOCK
    if (local < q_len) & (q_len * GROUP > LEAVE):
        tiles = gl.cdiv(gl.minimum(kv_len, kv_len - q_len + local + BLOCK), TILE)
        dtype: gl.constexpr = q_desc.dtype
        wide: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
        q_all = gl.allocate_shared_memory(dtype, [2, ROWS, D], q_desc.layout)
        k_smem = gl.allocate_shared_memory(dtype, [STAGES, TILE, D], wide)
        v_smem = gl.allocate_shared_memory(dtype, [STAGES, TILE, D], wide)
        total_all = gl.allocate_shared_memory(gl.float32, [2, ROWS, D], gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
        q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        mbarrier.init(q_full, count=1)
        for i in gl.static_range(STAGES):
            mbarrier.init(k_full.index(i), count=1)
            mbarrier.init(v_full.index(i), count=1)
            mbarrier.init(free.index(i), count=2)
        fence_async_shared()
        bars = (k_full, v_full, free)
        table = table_ptr + b.to(gl.int64) * table_stride
        gl.warp_specialize(
            [
                (
                    consumer,
                    (
                        q_all,
                        k_smem,
                        v_smem,
                        total_all,
                        q_full,
                        bars,
                        out_ptr,
                        c,
                        start,
                        local,
                        q_len,
                        kv_len,
                        tiles,
                        h,
                        H,
                        D,
                        SEGMENT_TILES,
                        0,
                    ),
                ),
                (
                    consumer,
                    (
                        q_all,
                        k_smem,
                        v_smem,
                        total_all,
                        q_full,
                        bars,
                        out_ptr,
                        c,
                        start,
                        local,
                        q_len,
                        kv_len,
                        tiles,
                        h,
                        H,
                        D,
                        SEGMENT_TILES,
                        1,
                    ),
                ),
                (
                    producer,
                    (
                        q_desc,
                        k_desc,
                        v_desc,
                        q_all,
                        k_smem,
                        v_smem,
                        q_full,
                        bars,
                        table,
                        start,
                        local,
                        gl.load(kv_cu_ptr + b),
                        kv_len,
                        tiles,
                        h,
                        h // GROUP,
                        k_ratio,
                        v_ratio,
                        k_head,
                        v_head,
                        D,
                        PAGE,
                        BOX,
                    ),
                ),
            ],
            [4, 1],
            [240, 24],
        )
