"""The linear operator on Hopper in Gluon: chains and fold of the contract, bit for bit.

One producer warp moves blocks of K by TMA to one or two consumer warpgroups of 64 tokens each, which share the tile's
weights. A program goes from tile to tile, and the next tile's loads run ahead of the last one's end. It walks all
segments of a tile and adds them one after another.
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
    load_blocks,
    moved,
    piece,
    pieces,
    place,
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
    out,
    SEGMENTS: gl.constexpr,
    SHARED: gl.constexpr,
    EVEN: gl.constexpr,
    BIAS: gl.constexpr,
    C: gl.constexpr,
    P: gl.constexpr,
):
    """All segments of a tile, folded, into the output. The total waits in registers; SHARED: its right half in shared
    memory."""
    blocks, segment = sizes
    N: gl.constexpr = smem[1].shape[1]
    HELD: gl.constexpr = N // 2 if SHARED else N
    W: gl.constexpr = piece(N)
    held_RN = state[0]
    for s in gl.static_range(SEGMENTS):
        count = gl.minimum(blocks - s * segment, segment)
        state = chain(state, smem, bars, count, C, P)
        left_RN, right_RN = sides(state[0], SHARED)
        held_RN = moved(left_RN) if s == 0 else held_RN + left_RN
        if SHARED:
            parts = pieces(right_RN)
            for j in gl.static_range((N - HELD) // W):
                sum_F = flat(parts[j])
                own_smem = smem[2].index(P * ((N - HELD) // W) + j)
                if s > 0:
                    sum_F = own_smem.load(flat_layout(W)) + sum_F
                if s < SEGMENTS - 1:
                    own_smem.store(sum_F)
                if s == SEGMENTS - 1:
                    store_piece(tile_of(sum_F, W), out, HELD + j * W, EVEN, BIAS)
    parts = pieces(held_RN)
    for j in gl.static_range(HELD // W):
        store_piece(parts[j], out, j * W, EVEN, BIAS)
    return state


@gluon.jit
def consumer(
    smem,
    bars,
    memory,
    sizes,
    grid,
    SEGMENTS: gl.constexpr,
    SHARED: gl.constexpr,
    SKEW: gl.constexpr,
    EVEN: gl.constexpr,
    BIAS: gl.constexpr,
    C: gl.constexpr,
    P: gl.constexpr,
):
    """Warpgroup P of C. SKEW: blocks the first one is ahead, so that one multiplies while the other folds or stores."""
    b_ptr, y_ptr = memory
    M, N, blocks, segment = sizes
    items, tiles_m, tiles_n, group = grid
    STAGES: gl.constexpr = smem[1].shape[0]
    BLOCK_N: gl.constexpr = smem[1].shape[1]
    state = (gl.zeros([ROWS, BLOCK_N], gl.float32, sum_layout(BLOCK_N)), 0, 0)
    if SKEW * P > 0:
        mbarrier.wait(bars[0].index(min(SKEW * P, STAGES - 1)), 0)
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        m, n = place(item, tiles_m, tiles_n, group)
        out = (b_ptr, y_ptr, (m * C + P) * ROWS, n * BLOCK_N, M, N)
        state = walk(smem, bars, state, (blocks, segment), out, SEGMENTS, SHARED, EVEN, BIAS, C, P)


@gluon.jit
def producer(descs, smem, bars, sizes, grid, C: gl.constexpr):
    """The blocks of all items, in order."""
    _, _, blocks, _ = sizes
    items, tiles_m, tiles_n, group = grid
    BLOCK_N: gl.constexpr = smem[1].shape[1]
    slot, phase = 0, 1
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        m, n = place(item, tiles_m, tiles_n, group)
        rows = (m * (C * ROWS), n * BLOCK_N)
        slot, phase = load_blocks(descs, smem, bars, rows, slot, phase, blocks, C)


@gluon.jit(do_not_specialize=["M", "blocks", "segment", "items", "tiles_m", "tiles_n", "group"])
def linear_hopper_kernel(
    x_desc,
    w_desc,
    b_ptr,
    y_ptr,
    M,
    N,
    blocks,
    segment,
    items,
    tiles_m,
    tiles_n,
    group,
    SEGMENTS: gl.constexpr,
    CONSUMERS: gl.constexpr,
    STAGES: gl.constexpr,
    SHARED: gl.constexpr,
    SKEW: gl.constexpr,
    EVEN: gl.constexpr,
    BIAS: gl.constexpr,
    num_warps: gl.constexpr,
):
    """y [M, N] in `blocks` blocks of K, `segment` of them a segment. items: tiles, dealt out in turn."""
    dtype: gl.constexpr = x_desc.dtype
    BLOCK_N: gl.constexpr = w_desc.block_shape[0]
    BLOCK_K: gl.constexpr = w_desc.block_shape[1]
    a_smem = gl.allocate_shared_memory(dtype, [STAGES * CONSUMERS, ROWS, BLOCK_K], x_desc.layout)
    b_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, BLOCK_K], w_desc.layout)
    rest_smem = b_smem
    if SHARED:
        PIECES: gl.constexpr = CONSUMERS * (BLOCK_N - BLOCK_N // 2) // piece(BLOCK_N)
        rest_smem = gl.allocate_shared_memory(gl.float32, [PIECES, ROWS * piece(BLOCK_N)], sums_layout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=CONSUMERS)
    fence_async_shared()
    C: gl.constexpr = CONSUMERS
    smem, bars = (a_smem, b_smem, rest_smem), (full, free)
    memory, sizes = (b_ptr, y_ptr), (M, N, blocks, segment)
    grid = (items, tiles_m, tiles_n, group)
    if CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consumer, (smem, bars, memory, sizes, grid, SEGMENTS, SHARED, SKEW, EVEN, BIAS, C, 0)),
                (producer, ((x_desc, w_desc), smem, bars, sizes, grid, C)),
            ],
            [1],
            [24],
        )
    else:
        gl.warp_specialize(
            [
                (consumer, (smem, bars, memory, sizes, grid, SEGMENTS, SHARED, SKEW, EVEN, BIAS, C, 0)),
                (consumer, (smem, bars, memory, sizes, grid, SEGMENTS, SHARED, SKEW, EVEN, BIAS, C, 1)),
                (producer, ((x_desc, w_desc), smem, bars, sizes, grid, C)),
            ],
            [4, 1],
            [240, 24],
        )
