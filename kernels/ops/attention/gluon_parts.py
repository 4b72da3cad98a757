"""Parts of the prefill attention kernel for Hopper (gluon.py): layouts, the arithmetic of a tile, stores.

R query rows of a warpgroup, N keys of a tile, D head size; _O: rows in the layout of the output.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ROWS = gl.constexpr(64)
TILE = gl.constexpr(128)
PANEL = gl.constexpr(64)
"""Columns of a 128-byte swizzled panel of 16-bit elements."""


@gluon.constexpr_function
def stages(D):
    """Tiles of keys and of values in shared memory."""
    return 2 if D == 128 else 4


@gluon.constexpr_function
def parts(D):
    """Consumer warpgroups, ROWS query rows each: at head 64 the registers suffice for three."""
    return 2 if D == 128 else 3


@gluon.constexpr_function
def producers(D):
    """Warps that load: two at head 128; at head 64 a tile has half the boxes and one is faster."""
    return 2 if D == 128 else 1


@gluon.constexpr_function
def turns(D):
    """Whether the warpgroups start their products in turn: where there are two."""
    return parts(D) == 2


@gluon.constexpr_function
def score_layout():
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])


@gluon.constexpr_function
def out_layout(D):
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])


@gluon.constexpr_function
def total_layout(D):
    """Of a total in shared memory: four neighbours of a thread side by side, then the threads of a warp, so that 16
    bytes move at a time without bank conflicts."""
    columns = [[0, 1 << i] for i in range(4, D.bit_length() - 1)]
    return gl.SharedLinearLayout(
        [[0, 1], [0, 8], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [8, 0], *columns, [16, 0], [32, 0]]
    )


@gluon.jit
def softmax_tile(s_RN, top_R, c, m_R, l_R):
    """Probabilities of a tile, and maximum, sum and rescale of the segment; see README.md. top_R: the row's largest."""
    new_m_R = gl.maximum(m_R, top_R * c)
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
def seen(s_RN, position_R, j):
    """Scores of tile j, those of keys behind the query -inf. A column's number is a constant: one comparison each."""
    n_N = gl.arange(0, TILE, layout=gl.SliceLayout(0, s_RN.type.layout))
    last_R = position_R - j * TILE
    return gl.where(gl.expand_dims(n_N, 0) <= gl.expand_dims(last_R, 1), s_RN, float("-inf"))


@gluon.jit
def scores(q_smem, k_smem):
    """Starts the scores of a tile: the token to wait for."""
    S: gl.constexpr = score_layout()
    zero_RN = gl.zeros([ROWS, TILE], gl.float32, S)
    return warpgroup_mma(q_smem, k_smem.permute((1, 0)), zero_RN, use_acc=False, is_async=True)


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


@gluon.constexpr_function
def named_barrier(word, number):
    """PTX of a barrier of two warpgroups; the compiler counts its own from 0 on."""
    return f"bar.{word} {number}, 256; mov.b32 $0, $1;"


@gluon.jit
def wait_turn(PART: gl.constexpr):
    """Until the other warpgroup of two has started its products."""
    word: gl.constexpr = named_barrier("sync", 10 + PART)
    gl.inline_asm_elementwise(word, "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def give_turn(PART: gl.constexpr):
    """The other warpgroup of two may start its products."""
    word: gl.constexpr = named_barrier("arrive", 11 - PART)
    gl.inline_asm_elementwise(word, "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def finish(p_RN, m_R, l_R, acc_RD, totals, total_smem, v_smem, full, valid, begun):
    """The values of the last tile onto the accumulator, the last segment onto the total: the output in float32.

    full: (barrier, phase) of the values. valid: keys of the tile. begun: whether the accumulator holds anything.
    """
    OUT: gl.constexpr = acc_RD.type.layout
    total_m_R, total_l_R = totals
    mbarrier.wait(full[0], full[1])
    if valid < TILE:
        clear_tail(v_smem, valid)
    acc_RD = warpgroup_mma(p_RN, v_smem, acc_RD, use_acc=begun, is_async=True)
    acc_RD = warpgroup_mma_wait(0, deps=[acc_RD])
    _, total_l_R, total_RD = fold(m_R, l_R, acc_RD, total_m_R, total_l_R, total_smem, OUT)
    return total_RD / gl.expand_dims(gl.convert_layout(total_l_R, gl.SliceLayout(1, OUT)), 1)


@gluon.jit
def store_rows(out_RD, total_smem, out_ptr, start, first, q_len, h, H):
    """Rows first, first + 1, ... of the sequence into the output [T, H, D], by way of the total's shared memory: 16
    bytes a thread, whole rows side by side. From the layout of the product they would be 4 bytes a thread. The queries'
    would do as well, were the next item's not on their way into it."""
    D: gl.constexpr = out_RD.shape[1]
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    W: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    smem = total_smem._reinterpret(dtype, [2, ROWS, D], gl.NVMMASharedLayout(128, 16, 2)).index(0)
    smem.store(out_RD.to(dtype))
    row_R = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, W))
    d_D = gl.arange(0, D, layout=gl.SliceLayout(0, W))
    at_R = ((start + row_R).to(gl.int64) * H + h) * D
    gl.store(
        out_ptr + gl.expand_dims(at_R, 1) + gl.expand_dims(d_D, 0),
        smem.load(W),
        mask=gl.expand_dims(row_R < q_len, 1),
    )
