"""The linear operator on Hopper in Gluon: chains and fold of the contract, bit for bit.

One producer warp moves blocks of K by TMA to one to four consumer warpgroups of 64 tokens each, which share the tile's
weights. A program goes from tile to tile, and the next tile's loads run ahead of the last one's end. It walks all
segments of a tile, or a span of them: then the program that comes last to a tile folds the kept sums.
M tokens, N outputs, K reduced; R tokens of a warpgroup.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from samebits.kernels.ops.linear.gluon_parts import (
    ROWS,
    chain,
    flat,
    flat_layout,
    keep,
    kept,
    kept_or,
    last_of,
    load_blocks,
    moved,
    piece,
    pieces,
    place,
    plus_kept,
    sides,
    store_piece,
    sum_layout,
    sums_layout,
    tile_of,
)


@gluon.jit
def walk(
    smem,
    bars,
    state,
    sizes,
    own_ptr,
    out,
    SEGMENTS: gl.constexpr,
    KEEP: gl.constexpr,
    SHARED: gl.constexpr,
    EVEN: gl.constexpr,
    BIAS: gl.constexpr,
    C: gl.constexpr,
    P: gl.constexpr,
):
    """All segments of a tile, folded, into the output. KEEP: halves of the total that wait in registers; the rest waits
    in shared memory where there is any for it, else at own_ptr."""
    blocks, segment = sizes
    N: gl.constexpr = smem[1].shape[1]
    HELD: gl.constexpr = N * KEEP // 2
    W: gl.constexpr = piece(N)
    held_RN = state[0]
    for s in gl.static_range(SEGMENTS):
        count = gl.minimum(blocks - s * segment, segment)
        state = chain(state, smem, bars, count, C, P)
        left_RN, right_RN = sides(state[0], KEEP)
        if KEEP > 0:
            held_RN = moved(left_RN) if s == 0 else held_RN + left_RN
        if KEEP < 2:
            parts = pieces(right_RN)
            for j in gl.static_range((N - HELD) // W):
                sum_F = flat(parts[j])
                if SHARED:
                    own_smem = smem[2].index(P * ((N - HELD) // W) + j)
                    if s > 0:
                        sum_F = own_smem.load(flat_layout(W)) + sum_F
                    if s < SEGMENTS - 1:
                        own_smem.store(sum_F)
                else:
                    if s > 0:
                        sum_F = kept(own_ptr + j * (ROWS * W), W) + sum_F
                    if s < SEGMENTS - 1:
                        keep(own_ptr + j * (ROWS * W), sum_F)
                if s == SEGMENTS - 1:
                    store_piece(tile_of(sum_F, W), out, HELD + j * W, EVEN, BIAS)
    if KEEP > 0:
        parts = pieces(held_RN)
        for j in gl.static_range(HELD // W):
            store_piece(parts[j], out, j * W, EVEN, BIAS)
    return state


@gluon.jit
def walk_span(smem, bars, state, sizes, own_ptr, span, SPAN: gl.constexpr, C: gl.constexpr, P: gl.constexpr):
    """A span of segments, their sums kept: those of the first span folded into part 0, each of the others alone."""
    blocks, segment = sizes
    N: gl.constexpr = smem[1].shape[1]
    W: gl.constexpr = piece(N)
    for i in gl.static_range(SPAN):
        count = gl.minimum(blocks - (span * SPAN + i) * segment, segment)
        state = chain(state, smem, bars, count, C, P)
        acc_RN = state[0]
        part_ptr = own_ptr + gl.where(span == 0, 0, (span - 1) * SPAN + i + 1) * (ROWS * N)
        parts = pieces(acc_RN)
        for j in gl.static_range(N // W):
            sum_F = flat(parts[j])
            if i > 0:
                sum_F = plus_kept(part_ptr + j * (ROWS * W), sum_F, span == 0)
            keep(part_ptr + j * (ROWS * W), sum_F)
    return state


@gluon.jit
def fold(own_ptr, last_RN, mine, out, PARTS: gl.constexpr, EVEN: gl.constexpr, BIAS: gl.constexpr):
    """Parts of a tile, kept by several programs, added in ascending order, into the output. mine: the part that this
    program still holds, last_RN."""
    N: gl.constexpr = last_RN.shape[1]
    W: gl.constexpr = piece(N)
    parts = pieces(last_RN)
    for j in gl.static_range(N // W):
        held_F = flat(parts[j])
        total_F = kept_or(own_ptr + j * (ROWS * W), held_F, mine == 0)
        for part in gl.static_range(1, PARTS):
            total_F = total_F + kept_or(own_ptr + part * (ROWS * N) + j * (ROWS * W), held_F, mine == part)
        store_piece(tile_of(total_F, W), out, j * W, EVEN, BIAS)


@gluon.jit
def consumer(
    smem,
    bars,
    memory,
    sizes,
    grid,
    SEGMENTS: gl.constexpr,
    SPAN: gl.constexpr,
    KEEP: gl.constexpr,
    SHARED: gl.constexpr,
    SKEW: gl.constexpr,
    EVEN: gl.constexpr,
    BIAS: gl.constexpr,
    C: gl.constexpr,
    P: gl.constexpr,
):
    """Warpgroup P of C. SKEW: blocks the first one is ahead, so that one multiplies while the other folds or stores."""
    b_ptr, y_ptr, part_ptr, arrived_ptr = memory
    M, N, blocks, segment = sizes
    items, tiles_m, tiles_n, group = grid
    STAGES: gl.constexpr = smem[1].shape[0]
    BLOCK_N: gl.constexpr = smem[1].shape[1]
    SPANS: gl.constexpr = SEGMENTS // SPAN
    PARTS: gl.constexpr = 1 + SEGMENTS - SPAN
    FIRST: gl.constexpr = 0 if SPAN == 1 else -1  # the first span holds its last sum, not its total
    SIZE: gl.constexpr = ROWS * BLOCK_N
    state = (gl.zeros([ROWS, BLOCK_N], gl.float32, sum_layout(BLOCK_N)), 0, 0)
    if SKEW * P > 0:
        mbarrier.wait(bars[0].index(min(SKEW * P, STAGES - 1)), 0)
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        tile, m, n, span = place(item, tiles_m, tiles_n, group, SPANS)
        out = (b_ptr, y_ptr, (m * C + P) * ROWS, n * BLOCK_N, M, N)
        if SPANS == 1:
            own_ptr = part_ptr + (gl.program_id(0) * C + P) * SIZE
            state = walk(smem, bars, state, (blocks, segment), own_ptr, out, SEGMENTS, KEEP, SHARED, EVEN, BIAS, C, P)
        else:
            own = tile * C + P
            own_ptr = part_ptr + own.to(gl.int64) * (PARTS * SIZE)
            state = walk_span(smem, bars, state, (blocks, segment), own_ptr, span, SPAN, C, P)
            if last_of(arrived_ptr + own, SPANS):
                fold(own_ptr, state[0], gl.where(span == 0, FIRST, span * SPAN), out, PARTS, EVEN, BIAS)


@gluon.jit
def producer(descs, smem, bars, sizes, grid, SEGMENTS: gl.constexpr, SPAN: gl.constexpr, C: gl.constexpr):
    """The blocks of all items, in order."""
    _, _, blocks, segment = sizes
    items, tiles_m, tiles_n, group = grid
    BLOCK_N: gl.constexpr = smem[1].shape[1]
    slot, phase = 0, 1
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        _, m, n, span = place(item, tiles_m, tiles_n, group, SEGMENTS // SPAN)
        start = span * SPAN * segment
        end = gl.minimum(start + SPAN * segment, blocks)
        rows = (m * (C * ROWS), n * BLOCK_N)
        slot, phase = load_blocks(descs, smem, bars, rows, slot, phase, start, end, C)


@gluon.jit(do_not_specialize=["M", "blocks", "segment", "items", "tiles_m", "tiles_n", "group"])
def linear_hopper_kernel(
    x_desc,
    w_desc,
    b_ptr,
    y_ptr,
    part_ptr,
    arrived_ptr,
    M,
    N,
    blocks,
    segment,
    items,
    tiles_m,
    tiles_n,
    group,
    SEGMENTS: gl.constexpr,
    SPAN: gl.constexpr,
    CONSUMERS: gl.constexpr,
    STAGES: gl.constexpr,
    KEEP: gl.constexpr,
    SHARED: gl.constexpr,
    SKEW: gl.constexpr,
    EVEN: gl.constexpr,
    BIAS: gl.constexpr,
    num_warps: gl.constexpr,
):
    """y [M, N] in `blocks` blocks of K, `segment` of them a segment. items: tiles times spans, dealt out in turn."""
    dtype: gl.constexpr = x_desc.dtype
    BLOCK_N: gl.constexpr = w_desc.block_shape[0]
    BLOCK_K: gl.constexpr = w_desc.block_shape[1]
    a_smem = gl.allocate_shared_memory(dtype, [STAGES * CONSUMERS, ROWS, BLOCK_K], x_desc.layout)
    b_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, BLOCK_K], w_desc.layout)
    rest_smem = b_smem
    if SHARED:
        PIECES: gl.constexpr = CONSUMERS * (BLOCK_N - BLOCK_N * KEEP // 2) // piece(BLOCK_N)
        rest_smem = gl.allocate_shared_memory(gl.float32, [PIECES, ROWS * piece(BLOCK_N)], sums_layout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=CONSUMERS)
    fence_async_shared()
    C: gl.constexpr = CONSUMERS
    smem, bars = (a_smem, b_smem, rest_smem), (full, free)
    memory, sizes = (b_ptr, y_ptr, part_ptr, arrived_ptr), (M, N, blocks, segment)
    grid = (items, tiles_m, tiles_n, group)
    if CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consumer, (smem, bars, memory, sizes, grid, SEGMENTS, SPAN, KEEP, SHARED, SKEW, EVEN, BIAS, C, 0)),
                (producer, ((x_desc, w_desc), smem, bars, sizes, grid, SEGMENTS, SPAN, C)),
            ],
            [1],
            [24],
        )
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consumer, (smem, bars, memory, sizes, grid, SEGMENTS, SPAN, KEEP, SHARED, SKEW, EVEN, BIAS, C, 0)),
                (consumer, (smem, bars, memory, sizes, grid, SEGMENTS, SPAN, KEEP, SHARED, SKEW, EVEN, BIAS, C, 1)),
                (producer, ((x_desc, w_desc), smem, bars, sizes, grid, SEGMENTS, SPAN, C)),
            ],
            [4, 1],
            [240, 24],
        )
    elif CONSUMERS == 3:
        gl.warp_specialize(
            [
                (consumer, (smem, bars, memory, sizes, grid, SEGMENTS, SPAN, KEEP, SHARED, SKEW, EVEN, BIAS, C, 0)),
                (consumer, (smem, bars, memory, sizes, grid, SEGMENTS, SPAN, KEEP, SHARED, SKEW, EVEN, BIAS, C, 1)),
                (consumer, (smem, bars, memory, sizes, grid, SEGMENTS, SPAN, KEEP, SHARED, SKEW, EVEN, BIAS, C, 2)),
                (producer, ((x_desc, w_desc), smem, bars, sizes, grid, SEGMENTS, SPAN, C)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )
    else:
        gl.warp_specialize(
            [
                (consumer, (smem, bars, memory, sizes, grid, SEGMENTS, SPAN, KEEP, SHARED, SKEW, EVEN, BIAS, C, 0)),
                (consumer, (smem, bars, memory, sizes, grid, SEGMENTS, SPAN, KEEP, SHARED, SKEW, EVEN, BIAS, C, 1)),
                (consumer, (smem, bars, memory, sizes, grid, SEGMENTS, SPAN, KEEP, SHARED, SKEW, EVEN, BIAS, C, 2)),
                (consumer, (smem, bars, memory, sizes, grid, SEGMENTS, SPAN, KEEP, SHARED, SKEW, EVEN, BIAS, C, 3)),
                (producer, ((x_desc, w_desc), smem, bars, sizes, grid, SEGMENTS, SPAN, C)),
            ],
            [4, 4, 4, 1],
            [112, 112, 112, 24],
        )
