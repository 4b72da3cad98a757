"""Triton kernels of paged attention: decode (keys split over programs), its merge, and prefill.

B sequences, T query tokens, H query heads, G key heads, D head size, R rows of a program, N keys of a tile.
All three do the arithmetic of README.md; which of them computes a row moves no bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROWS = 16
"""Rows (query token x head of a group) of a decode program; a sequence with more goes to the prefill kernel."""


@triton.jit
def attend_tile(q_RD, k_ND, v_ND, visible_RN, c, m_R, l_R, acc_RD):
    """One tile of keys into the state of the current segment."""
    s_RN = tl.dot(q_RD, tl.trans(k_ND), input_precision="ieee")
    s_RN = tl.where(visible_RN, s_RN, float("-inf"))
    new_m_R = tl.maximum(m_R, tl.max(s_RN, 1) * c)
    base_R = tl.where(new_m_R == float("-inf"), 0.0, new_m_R)
    p_RN = tl.exp2(tl.fma(s_RN, tl.full(s_RN.shape, 1.0, tl.float32) * c, tl.zeros_like(s_RN) - base_R[:, None]))
    alpha_R = tl.exp2(m_R - base_R)
    # p <= 1, so the bits of p + 2 count p in units of 2^-22; integer sums do not depend on their order.
    counts_RN = (p_RN + 2.0).to(tl.int32, bitcast=True) - 0x40000000
    # Fused multiply-adds are written out: left to the compiler, two kernels could choose differently.
    l_R = tl.fma(l_R, alpha_R, tl.sum(counts_RN, 1).to(tl.float32) * 2.384185791015625e-07)
    acc_RD = tl.dot(p_RN.to(v_ND.dtype), v_ND, acc_RD * alpha_R[:, None], input_precision="ieee")
    return new_m_R, l_R, acc_RD


@triton.jit
def fold(m_R, l_R, acc_RD, total_m_R, total_l_R, total_RD):
    """The next segment's state onto the total; a segment without a visible key changes nothing."""
    new_m_R = tl.maximum(total_m_R, m_R)
    base_R = tl.where(new_m_R == float("-inf"), 0.0, new_m_R)
    old_R, add_R = tl.exp2(total_m_R - base_R), tl.exp2(m_R - base_R)
    seen_R = m_R != float("-inf")
    total_l_R = tl.where(seen_R, tl.fma(total_l_R, old_R, l_R * add_R), total_l_R)
    old_RD = tl.zeros_like(total_RD) + old_R[:, None]
    total_RD = tl.where(seen_R[:, None], tl.fma(total_RD, old_RD, acc_RD * add_R[:, None]), total_RD)
    return new_m_R, total_l_R, total_RD


@triton.jit
def pages_of(table_ptr, b, table_stride, n_N, kv_len, PAGE: tl.constexpr):
    """The pages of the keys n_N."""
    return tl.load(table_ptr + b.to(tl.int64) * table_stride + n_N // PAGE, mask=n_N < kv_len, other=0).to(tl.int64)


@triton.jit(do_not_specialize=["splits", "segments_most", "rows_most", "table_stride"])
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    part_ptr,
    stat_ptr,
    table_ptr,
    cu_ptr,
    len_ptr,
    c,
    table_stride,
    q_token_stride,
    k_page_stride,
    k_slot_stride,
    k_head_stride,
    v_page_stride,
    v_slot_stride,
    v_head_stride,
    segments_most,
    rows_most,
    splits,
    G: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    FINAL: tl.constexpr,
    EARLY: tl.constexpr,
    R: tl.constexpr,
    TILE: tl.constexpr,
    SEGMENT_TILES: tl.constexpr,
):
    """Program (sequence, key head, split): whole segments, each started afresh. FINAL (one split): folded here; else
    partials for the merge."""
    split = tl.program_id(0) % splits
    g = (tl.program_id(0) // splits) % G
    b = tl.program_id(0) // (splits * G)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    start = tl.load(cu_ptr + b)
    q_len = tl.load(cu_ptr + b + 1) - start
    kv_len = tl.load(len_ptr + b)
    tiles = tl.cdiv(kv_len, TILE)
    share = tl.cdiv(tl.cdiv(tiles, SEGMENT_TILES), splits) * SEGMENT_TILES
    first = split * share
    last = tl.minimum(first + share, tiles)
    if (q_len == 0) | (q_len * GROUP > R) | (first >= last):
        return
    r = tl.arange(0, R)
    d = tl.arange(0, D)
    live_R = r < q_len * GROUP
    row_R = (start + r // GROUP).to(tl.int64) * (G * GROUP) + g * GROUP + r % GROUP
    pos_R = kv_len - q_len + r // GROUP
    q_at = (start + r // GROUP).to(tl.int64) * q_token_stride + (g * GROUP + r % GROUP) * D
    q_RD = tl.load(q_ptr + q_at[:, None] + d[None, :], mask=live_R[:, None], other=0.0)
    m_R, l_R, acc_RD = (
        tl.full((R,), float("-inf"), tl.float32),
        tl.zeros((R,), tl.float32),
        tl.zeros((R, D), tl.float32),
    )
    total_m_R, total_l_R, total_RD = m_R, l_R, acc_RD
    for tile in range(first, last):
        n_N = tile * TILE + tl.arange(0, TILE)
        page_N = pages_of(table_ptr, b, table_stride, n_N, kv_len, PAGE)
        k_at = page_N * k_page_stride + (n_N % PAGE) * k_slot_stride
        k_ND = tl.load(k_ptr + g * k_head_stride + k_at[:, None] + d[None, :], mask=(n_N < kv_len)[:, None], other=0.0)
        v_at = page_N * v_page_stride + (n_N % PAGE) * v_slot_stride
        v_ND = tl.load(v_ptr + g * v_head_stride + v_at[:, None] + d[None, :], mask=(n_N < kv_len)[:, None], other=0.0)
        m_R, l_R, acc_RD = attend_tile(q_RD, k_ND, v_ND, n_N[None, :] <= pos_R[:, None], c, m_R, l_R, acc_RD)
        if (tile % SEGMENT_TILES == SEGMENT_TILES - 1) | (tile == last - 1):
            if FINAL:
                total_m_R, total_l_R, total_RD = fold(m_R, l_R, acc_RD, total_m_R, total_l_R, total_RD)
            else:
                part_R = ((b * G + g) * rows_most + r).to(tl.int64)
                at_R = part_R * segments_most + tile // SEGMENT_TILES
                tl.store(part_ptr + at_R[:, None] * D + d[None, :], acc_RD, mask=live_R[:, None])
                tl.store(stat_ptr + at_R * 2, m_R, mask=live_R)
                tl.store(stat_ptr + at_R * 2 + 1, l_R, mask=live_R)
            m_R, l_R, acc_RD = (
                tl.full((R,), float("-inf"), tl.float32),
                tl.zeros((R,), tl.float32),
                tl.zeros((R, D), tl.float32),
            )
    if FINAL:
        out_RD = total_RD / total_l_R[:, None]
        tl.store(out_ptr + row_R[:, None] * D + d[None, :], out_RD.to(out_ptr.dtype.element_ty), mask=live_R[:, None])


@triton.jit(do_not_specialize=["segments_most", "rows_most"])
def merge_kernel(
    part_ptr,
    stat_ptr,
    out_ptr,
    cu_ptr,
    len_ptr,
    segments_most,
    rows_most,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    H: tl.constexpr,
    R: tl.constexpr,
    SEGMENT: tl.constexpr,
    STEPS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (query row of the decode kernel, head, sequence): the partials of its segments, ascending, by the same
    fold."""
    b = tl.program_id(1)
    h = tl.program_id(0) % H
    i = tl.program_id(0) // H
    if EARLY:
        tl.extra.cuda.gdc_wait()
    start = tl.load(cu_ptr + b)
    q_len = tl.load(cu_ptr + b + 1) - start
    if (i >= q_len) | (q_len * GROUP > R):
        return
    d = tl.arange(0, D)
    row = (start + i).to(tl.int64) * H + h
    part = ((b * (H // GROUP) + h // GROUP) * rows_most + i * GROUP + h % GROUP).to(tl.int64)
    segments = (tl.load(len_ptr + b) - q_len + i) // SEGMENT + 1
    total_m, total_l, total_D = float("-inf"), 0.0, tl.zeros((D,), tl.float32)
    for at in range(0, segments, STEPS):
        for step in tl.static_range(STEPS):
            inside = at + step < segments
            place = part * segments_most + at + step
            m = tl.load(stat_ptr + place * 2, mask=inside, other=float("-inf"))
            norm = tl.load(stat_ptr + place * 2 + 1, mask=inside, other=0.0)
            acc_D = tl.load(part_ptr + place * D + d, mask=d * 0 + at + step < segments, other=0.0)
            new_m = tl.maximum(total_m, m)
            base = tl.where(new_m == float("-inf"), 0.0, new_m)
            old, add = tl.exp2(total_m - base), tl.exp2(m - base)
            total_l = tl.where(m != float("-inf"), tl.fma(total_l, old, norm * add), total_l)
            old_D = tl.zeros_like(total_D) + old
            total_D = tl.where(m != float("-inf"), tl.fma(total_D, old_D, acc_D * add), total_D)
            total_m = new_m
    tl.store(out_ptr + row * D + d, (total_D / total_l).to(out_ptr.dtype.element_ty))


@triton.jit
def find_sequence(cu_ptr, tile, B, BLOCK: tl.constexpr):
    """The sequence of a flat query tile, when sequence b owns the tiles from cu[b] // BLOCK + b on."""
    low, high = 0, B
    while low < high:
        middle = (low + high) // 2
        if tl.load(cu_ptr + middle) // BLOCK + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit(do_not_specialize=["B", "table_stride"])
def prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    table_ptr,
    cu_ptr,
    len_ptr,
    c,
    B,
    table_stride,
    q_token_stride,
    k_page_stride,
    k_slot_stride,
    k_head_stride,
    v_page_stride,
    v_slot_stride,
    v_head_stride,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    LEAVE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    SEGMENT_TILES: tl.constexpr,
):
    """Program (head, tile of BLOCK query tokens): all its keys, segments folded in registers. LEAVE: rows up to
    which decode has the sequence."""
    h = tl.program_id(0)
    tile_q = tl.num_programs(1) - 1 - tl.program_id(1)
    b = find_sequence(cu_ptr, tile_q, B, BLOCK)
    start = tl.load(cu_ptr + b)
    q_len = tl.load(cu_ptr + b + 1) - start
    kv_len = tl.load(len_ptr + b)
    local = (tile_q - (start // BLOCK + b)) * BLOCK
    if (local >= q_len) | (q_len * GROUP <= LEAVE):
        return
    r = tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    live_R = local + r < q_len
    token_R = (start + local + r).to(tl.int64)
    pos_R = kv_len - q_len + local + r
    q_RD = tl.load(q_ptr + token_R[:, None] * q_token_stride + h * D + d[None, :], mask=live_R[:, None], other=0.0)
    m_R, l_R, acc_RD = (
        tl.full((BLOCK,), float("-inf"), tl.float32),
        tl.zeros((BLOCK,), tl.float32),
        tl.zeros((BLOCK, D), tl.float32),
    )
    total_m_R, total_l_R, total_RD = m_R, l_R, acc_RD
    tiles = tl.cdiv(tl.minimum(kv_len, kv_len - q_len + local + BLOCK), TILE)
    for tile in range(tiles):
        n_N = tile * TILE + tl.arange(0, TILE)
        page_N = pages_of(table_ptr, b, table_stride, n_N, kv_len, PAGE)
        k_at = page_N * k_page_stride + (n_N % PAGE) * k_slot_stride
        k_ND = tl.load(
            k_ptr + (h // GROUP) * k_head_stride + k_at[:, None] + d[None, :], mask=(n_N < kv_len)[:, None], other=0.0
        )
        v_at = page_N * v_page_stride + (n_N % PAGE) * v_slot_stride
        v_ND = tl.load(
            v_ptr + (h // GROUP) * v_head_stride + v_at[:, None] + d[None, :], mask=(n_N < kv_len)[:, None], other=0.0
        )
        m_R, l_R, acc_RD = attend_tile(q_RD, k_ND, v_ND, n_N[None, :] <= pos_R[:, None], c, m_R, l_R, acc_RD)
        if tile % SEGMENT_TILES == SEGMENT_TILES - 1:
            total_m_R, total_l_R, total_RD = fold(m_R, l_R, acc_RD, total_m_R, total_l_R, total_RD)
            m_R, l_R, acc_RD = (
                tl.full((BLOCK,), float("-inf"), tl.float32),
                tl.zeros((BLOCK,), tl.float32),
                tl.zeros((BLOCK, D), tl.float32),
            )
    total_m_R, total_l_R, total_RD = fold(m_R, l_R, acc_RD, total_m_R, total_l_R, total_RD)
    out_RD = total_RD / total_l_R[:, None]
    tl.store(
        out_ptr + (token_R * H + h)[:, None] * D + d[None, :], out_RD.to(out_ptr.dtype.element_ty), mask=live_R[:, None]
    )
