"""Prefill attention for Hopper in Gluon: the arithmetic of `prefill_kernel` in triton.py, bit for bit.

One program per multiprocessor takes items, a block of queries of one head each, by tickets. Two producer warps, one for
queries and keys and one for values, move them by TMA to consumer warpgroups of 64 query rows each: two at head 128,
three at head 64. While these end an item, the next one's queries and first keys are on their way.
Each warpgroup overlaps the score product of the next tile with the value product of the last one; two start their
products in turn. The folded total of earlier segments waits in shared memory.
D head size; an item, and base: see gluon_rows.py.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from samebits.kernels.ops.attention.gluon_parts import (
    PANEL,
    ROWS,
    TILE,
    find_sequence,
    give_turn,
    load_tile,
    parts,
    stages,
    store_rows,
    total_layout,
    turns,
    wait_turn,
)
from samebits.kernels.ops.attention.gluon_rows import begin, end

FIELDS = gl.constexpr(8)
"""Integers of an item in shared memory, of which seven are used."""
FIRST_TOKEN, FIRST_ROW, Q_LEN, KV_LEN, COUNT, HEAD, SEQUENCE = (gl.constexpr(i) for i in range(7))
"""Which is which. COUNT: its tiles, 0 where there is no item any more."""


@gluon.jit
def put(item_smem, field: gl.constexpr, value):
    """By the keys' producer, before the queries' barrier."""
    item_smem.index(field).store(gl.zeros([1], gl.int32, gl.BlockedLayout([1], [32], [1], [0])) + value)


@gluon.jit
def got(item_smem, field: gl.constexpr, WARPS: gl.constexpr = 4):
    """By one of the others, of so many warps, behind it."""
    return gl.max(item_smem.index(field).load(gl.BlockedLayout([1], [32], [WARPS], [0])), 0)


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


@gluon.jit
def locate(ticket, cu_ptr, len_ptr, B, heads, blocks, GROUP, LEAVE, D: gl.constexpr):
    """The item of a ticket: (sequence, head, first token, first row, query length, key length, tiles).

    Heads of a section come side by side, its longest block first, section after section. Tiles 0: nothing to do.
    """
    BLOCK: gl.constexpr = parts(D) * ROWS
    row = ticket // heads
    section = row // blocks
    h = section * heads + ticket - row * heads
    tile_q = blocks - 1 - (row - section * blocks)
    b = find_sequence(cu_ptr, tile_q, B, BLOCK)
    start = gl.load(cu_ptr + b)
    q_len = gl.load(cu_ptr + b + 1) - start
    kv_len = gl.load(len_ptr + b)
    local = (tile_q - (start // BLOCK + b)) * BLOCK
    tiles = gl.cdiv(gl.minimum(kv_len, kv_len - q_len + local + BLOCK), TILE)
    return b, h, start, local, q_len, kv_len, gl.where((local < q_len) & (q_len * GROUP > LEAVE), tiles, 0)


@gluon.jit
def boxes_of(slots, desc, D: gl.constexpr):
    """Slots of tiles as boxes, panel by panel."""
    BOX: gl.constexpr = desc.block_shape[0]
    COUNT: gl.constexpr = slots.shape[0] * (TILE // BOX) * (D // PANEL)
    return slots._reinterpret(slots.dtype, [COUNT, BOX, PANEL], desc.layout)


@gluon.jit
def keys_producer(descs, shared, where, D: gl.constexpr, PAGE: gl.constexpr):
    """One warp: takes items, tells the others, and loads queries and keys into slots as they are freed."""
    smem, item_smem, q_bars, bars = shared
    q_all, k_smem, _ = smem
    q_full, q_free = q_bars
    k_full, _, free = bars
    q_desc, k_desc = descs
    pointers, sizes, ratios, work = where
    k_ratio, k_head = ratios
    table_ptr, cu_ptr, kv_cu_ptr, len_ptr, ticket_ptr = pointers
    B, table_stride, GROUP, LEAVE = sizes
    heads, blocks, items = work
    STAGES: gl.constexpr = stages(D)
    PARTS: gl.constexpr = parts(D)
    BOXES: gl.constexpr = (TILE // k_desc.block_shape[0]) * (D // PANEL)
    k_boxes = boxes_of(k_smem, k_desc, D)
    base, done = 0, 0
    ticket = gl.program_id(0)
    while ticket < items:
        b, h, start, local, q_len, kv_len, tiles = locate(ticket, cu_ptr, len_ptr, B, heads, blocks, GROUP, LEAVE, D)
        if tiles > 0:
            table = table_ptr + b.to(gl.int64) * table_stride
            kv_start = gl.load(kv_cu_ptr + b)
            k_from = k_desc, h // GROUP * k_head, k_ratio
            slot = base % STAGES
            mbarrier.wait(free.index(slot), ((base // STAGES) & 1) ^ 1)
            load_tile(k_from, k_boxes, slot * BOXES, k_full.index(slot), table, 0, kv_start, kv_len, D, PAGE)
            mbarrier.wait(q_free, (done & 1) ^ 1)
            put(item_smem, FIRST_TOKEN, start)
            put(item_smem, FIRST_ROW, local)
            put(item_smem, Q_LEN, q_len)
            put(item_smem, KV_LEN, kv_len)
            put(item_smem, COUNT, tiles)
            put(item_smem, HEAD, h)
            put(item_smem, SEQUENCE, b)
            gl.thread_barrier()
            mbarrier.expect(q_full, PARTS * ROWS * D * 2)
            for part in gl.static_range(PARTS):
                tma.async_copy_global_to_shared(q_desc, [start + local + part * ROWS, h * D], q_full, q_all.index(part))
            for j in range(1, tiles):
                i = base + j
                slot = i % STAGES
                mbarrier.wait(free.index(slot), ((i // STAGES) & 1) ^ 1)
                load_tile(k_from, k_boxes, slot * BOXES, k_full.index(slot), table, j, kv_start, kv_len, D, PAGE)
            base += tiles
            done += 1
        # The answer may take its time: the consumers have the tiles of all stages to go.
        ticket = gl.num_programs(0) + gl.atomic_add(ticket_ptr, 1, sem="relaxed")
    mbarrier.wait(q_free, (done & 1) ^ 1)
    put(item_smem, COUNT, 0)
    gl.thread_barrier()
    mbarrier.arrive(q_full, count=1)


@gluon.jit
def values_producer(v_desc, shared, where, D: gl.constexpr, PAGE: gl.constexpr):
    """Another warp: loads the values of the items that the first one takes, and reads these as a consumer does.

    Of small pages a tile has many boxes, which one warp sends for one after the other: two are done sooner."""
    smem, item_smem, q_bars, bars = shared
    _, _, v_smem = smem
    q_full, q_free = q_bars
    _, v_full, free = bars
    pointers, sizes = where
    table_ptr, kv_cu_ptr = pointers
    table_stride, GROUP, v_ratio, v_head = sizes
    STAGES: gl.constexpr = stages(D)
    BOXES: gl.constexpr = (TILE // v_desc.block_shape[0]) * (D // PANEL)
    v_boxes = boxes_of(v_smem, v_desc, D)
    base, done = 0, 0
    mbarrier.wait(q_full, 0)
    tiles = got(item_smem, COUNT, 1)
    while tiles > 0:
        b, kv_len, h = got(item_smem, SEQUENCE, 1), got(item_smem, KV_LEN, 1), got(item_smem, HEAD, 1)
        mbarrier.arrive(q_free, count=1)
        table = table_ptr + b.to(gl.int64) * table_stride
        kv_start = gl.load(kv_cu_ptr + b)
        v_from = v_desc, h // GROUP * v_head, v_ratio
        for j in range(tiles):
            i = base + j
            slot = i % STAGES
            # Values are freed with the keys of the tile behind them.
            mbarrier.wait(free.index((i + 1) % STAGES), (((i + 1) // STAGES) & 1) ^ 1)
            load_tile(v_from, v_boxes, slot * BOXES, v_full.index(slot), table, j, kv_start, kv_len, D, PAGE)
        base += tiles
        done += 1
        mbarrier.wait(q_full, done & 1)
        tiles = got(item_smem, COUNT, 1)


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
    mbarrier.init(q_free, count=PARTS + 1)  # the values' producer, too
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(free.index(i), count=PARTS)
    fence_async_shared()
    bars, q_bars, out = (k_full, v_full, free), (q_full, q_free), (out_ptr, H)
    shared, ratios, work = (smem, item_smem, q_bars, bars), (k_ratio, k_head), (heads, blocks, items)
    k_from = (table_ptr, cu_ptr, kv_cu_ptr, len_ptr, ticket_ptr), (B, table_stride, GROUP, LEAVE), ratios, work
    v_from = (table_ptr, kv_cu_ptr), (table_stride, GROUP, v_ratio, v_head)
    if PARTS == 2:
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
        total_2 = gl.allocate_shared_memory(gl.float32, [ROWS, D], total_layout(D))
        gl.warp_specialize(
            [
                (consumer, (smem, total_0, item_smem, q_bars, bars, out, c, D, SEGMENT_TILES, 0)),
                (consumer, (smem, total_1, item_smem, q_bars, bars, out, c, D, SEGMENT_TILES, 1)),
                (consumer, (smem, total_2, item_smem, q_bars, bars, out, c, D, SEGMENT_TILES, 2)),
                (keys_producer, ((q_desc, k_desc), shared, k_from, D, PAGE)),
                (values_producer, (v_desc, shared, v_from, D, PAGE)),
            ],
            [4, 4, 1, 1],
            [160, 160, 24, 24],
        )
