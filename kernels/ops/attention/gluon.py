"""Prefill attention for Hopper in Gluon: the arithmetic of `prefill_kernel` in triton.py, bit for bit.

One program per multiprocessor takes items, a block of queries of one head each, by tickets. Producer warps move their
queries, keys and values by TMA to consumer warpgroups of 64 query rows each. At head 128 there are two consumers, one
producer of queries and keys and one of values; at head 64 three consumers, and one producer of all. While the consumers
end an item, the next one's queries and first keys are on their way.
Each warpgroup overlaps the score product of the next tile with the value product of the last one; two start their
products in turn. The folded total of earlier segments waits in shared memory.
D head size; an item, and base: see gluon_rows.py.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from samebits.kernels.ops.attention.gluon_items import (
    COUNT,
    FIELDS,
    FIRST_ROW,
    FIRST_TOKEN,
    HEAD,
    KV_LEN,
    Q_LEN,
    got,
    keys_producer,
    producer,
    values_producer,
)
from samebits.kernels.ops.attention.gluon_parts import (
    ROWS,
    TILE,
    give_turn,
    parts,
    producers,
    stages,
    store_rows,
    total_layout,
    turns,
    wait_turn,
)
from samebits.kernels.ops.attention.gluon_rows import begin, end


@gluon.jit
def consumer(
    smem, total_smem, item_smem, q_bars, bars, out, c, D: gl.constexpr, SEGMENT_TILES: gl.constexpr, PART: gl.constexpr
):
    """One warpgroup: its rows of item after item."""
    _, _, v_smem = smem
    q_full, q_free = q_bars
    k_full, v_full, free = bars
    out_ptr, H = out
    STAGES: gl.constexpr = stages(D)
    PARTS: gl.constexpr = parts(D)
    if turns(D) and PART == 1:
        give_turn(PART)
    base, done = 0, 0
    mbarrier.wait(q_full, 0)
    tiles = got(item_smem, COUNT)
    while tiles > 0:
        start, local, q_len = got(item_smem, FIRST_TOKEN), got(item_smem, FIRST_ROW), got(item_smem, Q_LEN)
        kv_len, h = got(item_smem, KV_LEN), got(item_smem, HEAD)
        own = tiles
        if PARTS == 3:
            # The first warpgroup may be through one tile earlier.
            own = gl.minimum(tiles, gl.cdiv(kv_len - q_len + local + (PART + 1) * ROWS, TILE))
        item = (start, local, q_len, kv_len, own, h)
        state = begin(smem, total_smem, bars, item, base, c, D, SEGMENT_TILES, PART)
        mbarrier.arrive(q_free, count=1)
        out_RD = end(state, total_smem, bars, v_smem, item, base, c, SEGMENT_TILES)
        store_rows(out_RD, total_smem, out_ptr, start, local + PART * ROWS, q_len, h, H)
        if PARTS == 3 and own < tiles:
            # It needs no key of the last tile, and must not miss a phase of the barriers all the same.
            last = base + tiles - 1
            mbarrier.wait(k_full.index(last % STAGES), (last // STAGES) & 1)
            mbarrier.wait(v_full.index(last % STAGES), (last // STAGES) & 1)
            mbarrier.arrive(free.index(last % STAGES), count=1)
        base += tiles
        done += 1
        mbarrier.wait(q_full, done & 1)
        tiles = got(item_smem, COUNT)
    if turns(D) and PART == 0:
        wait_turn(PART)


@gluon.jit(
    do_not_specialize=[
        "B",
        "table_stride",
        "k_ratio",
        "v_ratio",
        "k_head",
        "v_head",
        "H",
        "GROUP",
        "LEAVE",
        "heads",
        "blocks",
        "items",
    ]
)
def prefill_hopper_kernel(
    q_desc,
    k_desc,
    v_desc,
    out_ptr,
    table_ptr,
    cu_ptr,
    kv_cu_ptr,
    len_ptr,
    ticket_ptr,
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
    heads,
    blocks,
    items,
    D: gl.constexpr,
    PAGE: gl.constexpr,
    SEGMENT_TILES: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Any number of programs takes `items` items: (head of a section, block of query tokens, section of heads).

    heads: of a section. blocks: of queries, as `locate` numbers them. ticket_ptr: one int32, 0 at the start, of this
    launch alone. LEAVE: rows up to which decode has the sequence.
    """
    PARTS: gl.constexpr = parts(D)
    STAGES: gl.constexpr = stages(D)
    dtype: gl.constexpr = q_desc.dtype
    wide: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_all = gl.allocate_shared_memory(dtype, [PARTS, ROWS, D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, TILE, D], wide)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, TILE, D], wide)
    smem = (q_all, k_smem, v_smem)
    total_0 = gl.allocate_shared_memory(gl.float32, [ROWS, D], total_layout(D))
    total_1 = gl.allocate_shared_memory(gl.float32, [ROWS, D], total_layout(D))
    item_smem = gl.allocate_shared_memory(gl.int32, [FIELDS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    mbarrier.init(q_free, count=PARTS + producers(D) - 1)  # a values' producer, too
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(free.index(i), count=PARTS)
    fence_async_shared()
    bars, q_bars, out = (k_full, v_full, free), (q_full, q_free), (out_ptr, H)
    shared, work = (smem, item_smem, q_bars, bars), (heads, blocks, items)
    pointers, sizes = (table_ptr, cu_ptr, kv_cu_ptr, len_ptr, ticket_ptr), (B, table_stride, GROUP, LEAVE)
    if PARTS == 2:
        k_from = pointers, sizes, (k_ratio, k_head), work
        v_from = (table_ptr, kv_cu_ptr), (table_stride, GROUP, v_ratio, v_head)
        gl.warp_specialize(
            [
                (consumer, (smem, total_0, item_smem, q_bars, bars, out, c, D, SEGMENT_TILES, 0)),
                (consumer, (smem, total_1, item_smem, q_bars, bars, out, c, D, SEGMENT_TILES, 1)),
                (keys_producer, ((q_desc, k_desc), shared, k_from, D, PAGE)),
                (values_producer, (v_desc, shared, v_from, D, PAGE)),
            ],
            [4, 1, 1],
            [240, 24, 24],
        )
    else:
        kv_from = pointers, sizes, (k_ratio, v_ratio, k_head, v_head), work
        total_2 = gl.allocate_shared_memory(gl.float32, [ROWS, D], total_layout(D))
        gl.warp_specialize(
            [
                (consumer, (smem, total_0, item_smem, q_bars, bars, out, c, D, SEGMENT_TILES, 0)),
                (consumer, (smem, total_1, item_smem, q_bars, bars, out, c, D, SEGMENT_TILES, 1)),
                (consumer, (smem, total_2, item_smem, q_bars, bars, out, c, D, SEGMENT_TILES, 2)),
                (producer, ((q_desc, k_desc, v_desc), shared, kv_from, D, PAGE)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )
