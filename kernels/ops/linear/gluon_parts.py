"""Parts of the linear kernel for Hopper (gluon.py): places, a segment's chain, sums in memory, the output.

A warpgroup has ROWS tokens of a tile; N outputs of it. Sums in shared memory lie as the warpgroup's threads hold them,
four floats of a thread side by side and then the threads of a warp: 16 bytes a thread, whole lines a warp.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

ROWS = gl.constexpr(64)
WIDTH = gl.constexpr(64)
"""Outputs of a piece of a tile that is folded and stored at a time."""


@gluon.constexpr_function
def piece(N):
    """Columns of a piece."""
    return min(N, 64)


@gluon.constexpr_function
def sum_layout(N):
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])


@gluon.constexpr_function
def wide_layout(N):
    """Eight neighbours of a row in a thread, 64 bytes of a row in four: from the layout of the sums by shuffles within
    a warp, and 16 bytes a thread to store."""
    columns = [[0, 1 << i] for i in range(5, N.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [8, 0], *columns],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]],
        [],
        [64, N],
    )


@gluon.jit
def place(tile, tiles_m, tiles_n, group):
    """Place of a tile in M and in N. Tiles side by side in time share weights and, by groups of rows of tiles,
    tokens."""
    in_group = tile % (group * tiles_n)
    first = tile // (group * tiles_n) * group
    rows = gl.minimum(tiles_m - first, group)
    return first + in_group % rows, in_group // rows


@gluon.jit
def chain(state, smem, bars, count, CONSUMERS: gl.constexpr, PART: gl.constexpr):
    """One segment: `count` blocks of K. state: accumulator, slot and phase; returns the next ones.

    The first product begins the accumulator; what it held does not count. (Zeros in its place would be a second set
    of registers beside the one that is being stored.) A block's products start while those of the block before it
    run, whose slot is free when these are through. (That slot is worked out each time: a second name for `slot` from
    before the loop would stay what it was, as Triton carries only what a first pass over the body changes.)
    """
    acc, slot, phase = state
    a_smem, b_smem, _ = smem
    full, free = bars
    STAGES: gl.constexpr = b_smem.shape[0]
    for k in range(count):
        mbarrier.wait(full.index(slot), phase)
        a, b = a_smem.index(slot * CONSUMERS + PART), b_smem.index(slot).permute((1, 0))
        token = warpgroup_mma(a, b, acc, use_acc=k > 0, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[token])
        mbarrier.arrive(free.index(gl.where(slot == 0, STAGES, slot) - 1), count=1, pred=k > 0)
        slot += 1
        wrap = slot == STAGES
        slot = gl.where(wrap, 0, slot)
        phase = gl.where(wrap, phase ^ 1, phase)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(free.index(gl.where(slot == 0, STAGES, slot) - 1), count=1)
    return acc, slot, phase


@gluon.jit
def load_blocks(descs, smem, bars, rows, slot, phase, blocks, CONSUMERS: gl.constexpr):
    """The blocks of K of a tile into freed slots. rows: first token and first output of the tile."""
    x_desc, w_desc = descs
    a_smem, b_smem, _ = smem
    full, free = bars
    STAGES: gl.constexpr = b_smem.shape[0]
    N: gl.constexpr = b_smem.shape[1]
    K: gl.constexpr = b_smem.shape[2]
    for block in range(blocks):
        bar = full.index(slot)
        mbarrier.wait(free.index(slot), phase)
        mbarrier.expect(bar, (CONSUMERS * ROWS + N) * K * 2)
        for part in gl.static_range(CONSUMERS):
            at = [rows[0] + part * ROWS, block * K]
            tma.async_copy_global_to_shared(x_desc, at, bar, a_smem.index(slot * CONSUMERS + part))
        tma.async_copy_global_to_shared(w_desc, [rows[1], block * K], bar, b_smem.index(slot))
        slot += 1
        wrap = slot == STAGES
        slot = gl.where(wrap, 0, slot)
        phase = gl.where(wrap, phase ^ 1, phase)
    return slot, phase


@gluon.constexpr_function
def flat_layout(N):
    """Of sums [ROWS * N] in memory's order, each in the thread of `sum_layout`."""
    if N < 16:
        return gl.DistributedLinearLayout(
            [[1], [8 * N]], [[2], [4], [N], [2 * N], [4 * N]], [[16 * N], [32 * N]], [], [64 * N]
        )
    panels = [[1 << i] for i in range(10, 6 + N.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        [[1], [2], [128], *panels], [[4], [8], [16], [32], [64]], [[256], [512]], [], [64 * N]
    )


@gluon.constexpr_function
def sums_layout():
    """Of sums in shared memory, in the order of `flat`: 16 bytes of a thread, then the threads of a warp."""
    return gl.SwizzledSharedLayout(1, 1, 1, [0])


@gluon.jit
def flat(sum_RN):
    """Sums in the order they have in memory, [ROWS * N]: no data moves."""
    N: gl.constexpr = sum_RN.shape[1]
    if N < 16:
        sum_F = gl.reshape(sum_RN, [ROWS * N])
    else:
        split = gl.reshape(sum_RN, [ROWS, N // 16, 2, 4, 2])
        sum_F = gl.reshape(gl.permute(split, (1, 0, 3, 2, 4)), [ROWS * N])
    return gl.convert_layout(sum_F, flat_layout(N))


@gluon.jit
def tile_of(sum_F, N: gl.constexpr):
    """`flat` undone: [ROWS, N]."""
    if N < 16:
        sum_RN = gl.reshape(sum_F, [ROWS, N])
    else:
        split = gl.permute(gl.reshape(sum_F, [N // 16, ROWS, 4, 2, 2]), (1, 0, 3, 2, 4))
        sum_RN = gl.reshape(split, [ROWS, N])
    return gl.convert_layout(sum_RN, sum_layout(N))


@gluon.jit
def halves(sum_RN):
    """Left and right columns: no data moves."""
    N: gl.constexpr = sum_RN.shape[1]
    left, right = gl.split(gl.permute(gl.reshape(sum_RN, [ROWS, 2, N // 2]), (0, 2, 1)))
    LAYOUT: gl.constexpr = sum_layout(N // 2)
    return gl.convert_layout(left, LAYOUT), gl.convert_layout(right, LAYOUT)


@gluon.jit
def sides(sum_RN, HALVED: gl.constexpr):
    """What waits in registers, and the rest: a half each, or all and nothing else."""
    if HALVED:
        return halves(sum_RN)
    else:
        return sum_RN, sum_RN


@gluon.jit
def moved(sum_RN):
    """The same in registers of its own: else the next segment's accumulator would move away from these."""
    return gl.inline_asm_elementwise("mov.f32 $0, $1;", "=f,f", [sum_RN], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def pieces(sum_RN):
    """A tile in pieces of at most WIDTH columns, one after another: so few are in flight beside the accumulator."""
    N: gl.constexpr = sum_RN.shape[1]
    if N <= WIDTH:
        return (sum_RN,)
    elif N == 2 * WIDTH:
        return halves(sum_RN)
    else:
        left, right = halves(sum_RN)
        return halves(left) + halves(right)


@gluon.jit
def store_piece(sum_RN, out, column, EVEN: gl.constexpr, HAS_BIAS: gl.constexpr):
    """Bias, one rounding, the output [M, N]. column: first of the piece within the tile. EVEN: N is a multiple of the
    tile's outputs."""
    b_ptr, y_ptr, first_m, first_n, M, N = out
    WIDE: gl.constexpr = sum_RN.shape[1]
    first_n += column
    if HAS_BIAS:
        n_N = first_n + gl.arange(0, WIDE, layout=gl.SliceLayout(0, sum_RN.type.layout))
        bias_N = gl.load(b_ptr + n_N, mask=n_N < N, other=0.0).to(gl.float32)
        sum_RN = sum_RN + gl.expand_dims(bias_N, 0)
    y_RN = sum_RN.to(y_ptr.dtype.element_ty)
    if WIDE >= 32:
        y_RN = gl.convert_layout(y_RN, wide_layout(WIDE))
    m_R = first_m + gl.arange(0, ROWS, layout=gl.SliceLayout(1, y_RN.type.layout))
    n_N = first_n + gl.arange(0, WIDE, layout=gl.SliceLayout(0, y_RN.type.layout))
    at_RN = y_ptr + gl.expand_dims(m_R.to(gl.int64) * N, 1) + gl.expand_dims(n_N, 0)
    inside = gl.expand_dims(m_R < M, 1)
    if not EVEN:
        inside = inside & gl.expand_dims(n_N < N, 0)
    gl.store(at_RN, y_RN, mask=inside)
