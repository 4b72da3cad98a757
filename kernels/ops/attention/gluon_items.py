"""Prefill attention for Hopper (gluon.py): which block of queries is next, and the warps that load what it needs.
D head size.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from samebits.kernels.ops.attention.gluon_loads import boxes_of, load_tile, load_tile_of, pages_of
from samebits.kernels.ops.attention.gluon_parts import PANEL, ROWS, TILE, parts, producers, stages

FIELDS = gl.constexpr(8)
"""Integers of an item in shared memory, of which seven are used; SEQUENCE by a values' producer alone."""
FIRST_TOKEN, FIRST_ROW, Q_LEN, KV_LEN, COUNT, HEAD, SEQUENCE = (gl.constexpr(i) for i in range(7))
"""Which is which. COUNT: its tiles, 0 where there is no item any more."""


@gluon.jit
def put(item_smem, field: gl.constexpr, value):
    """By the producer that takes items, before the queries' barrier."""
    item_smem.index(field).store(gl.zeros([1], gl.int32, gl.BlockedLayout([1], [32], [1], [0])) + value)


@gluon.jit
def got(item_smem, field: gl.constexpr, WARPS: gl.constexpr = 4):
    """By one of the others, of so many warps, behind it."""
    return gl.max(item_smem.index(field).load(gl.BlockedLayout([1], [32], [WARPS], [0])), 0)


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
def hand_over(q_desc, shared, item, done, D: gl.constexpr):
    """Tells the others an item as `locate` gives it, and loads its queries. done: items before it."""
    smem, item_smem, q_bars, _ = shared
    q_all, _, _ = smem
    q_full, q_free = q_bars
    b, h, start, local, q_len, kv_len, tiles = item
    PARTS: gl.constexpr = parts(D)
    mbarrier.wait(q_free, (done & 1) ^ 1)
    put(item_smem, FIRST_TOKEN, start)
    put(item_smem, FIRST_ROW, local)
    put(item_smem, Q_LEN, q_len)
    put(item_smem, KV_LEN, kv_len)
    put(item_smem, COUNT, tiles)
    put(item_smem, HEAD, h)
    if producers(D) == 2:
        put(item_smem, SEQUENCE, b)
    gl.thread_barrier()
    mbarrier.expect(q_full, PARTS * ROWS * D * 2)
    for part in gl.static_range(PARTS):
        tma.async_copy_global_to_shared(q_desc, [start + local + part * ROWS, h * D], q_full, q_all.index(part))


@gluon.jit
def say_end(shared, done):
    """Tells the others that there is no item any more, behind `done` of them."""
    _, item_smem, q_bars, _ = shared
    q_full, q_free = q_bars
    mbarrier.wait(q_free, (done & 1) ^ 1)
    put(item_smem, COUNT, 0)
    gl.thread_barrier()
    mbarrier.arrive(q_full, count=1)


@gluon.jit
def producer(descs, shared, where, D: gl.constexpr, PAGE: gl.constexpr):
    """One warp: takes items, tells the consumers, and loads queries, keys and values into slots as they are freed."""
    smem, _, _, bars = shared
    _, k_smem, v_smem = smem
    k_full, v_full, free = bars
    q_desc, k_desc, v_desc = descs
    pointers, sizes, ratios, work = where
    table_ptr, cu_ptr, kv_cu_ptr, len_ptr, ticket_ptr = pointers
    B, table_stride, GROUP, LEAVE = sizes
    k_ratio, v_ratio, k_head, v_head = ratios
    heads, blocks, items = work
    STAGES: gl.constexpr = stages(D)
    BOXES: gl.constexpr = (TILE // k_desc.block_shape[0]) * (D // PANEL)
    k_boxes = boxes_of(k_smem, k_desc, D)
    v_boxes = boxes_of(v_smem, v_desc, D)
    base, done = 0, 0
    ticket = gl.program_id(0)
    while ticket < items:
        b, h, start, local, q_len, kv_len, tiles = locate(ticket, cu_ptr, len_ptr, B, heads, blocks, GROUP, LEAVE, D)
        if tiles > 0:
            table = table_ptr + b.to(gl.int64) * table_stride
            kv_start = gl.load(kv_cu_ptr + b)
            g = h // GROUP
            k_from, v_from = (k_desc, g * k_head, k_ratio), (v_desc, g * v_head, v_ratio)
            slot = base % STAGES
            mbarrier.wait(free.index(slot), ((base // STAGES) & 1) ^ 1)
            load_tile(k_from, k_boxes, slot * BOXES, k_full.index(slot), table, 0, kv_start, kv_len, D, PAGE)
            hand_over(q_desc, shared, (b, h, start, local, q_len, kv_len, tiles), done, D)
            for j in range(tiles):
                i = base + j
                slot, after = i % STAGES, (i + 1) % STAGES
                # Keys of tile j + 1 and values of tile j are freed at once.
                mbarrier.wait(free.index(after), (((i + 1) // STAGES) & 1) ^ 1)
                if j + 1 < tiles:
                    k_bar = k_full.index(after)
                    load_tile(k_from, k_boxes, after * BOXES, k_bar, table, j + 1, kv_start, kv_len, D, PAGE)
                load_tile(v_from, v_boxes, slot * BOXES, v_full.index(slot), table, j, kv_start, kv_len, D, PAGE)
            base += tiles
            done += 1
        # The answer may take its time: the consumers have the tiles of all stages to go.
        ticket = gl.num_programs(0) + gl.atomic_add(ticket_ptr, 1, sem="relaxed")
    say_end(shared, done)


@gluon.jit
def keys_producer(descs, shared, where, D: gl.constexpr, PAGE: gl.constexpr):
    """One warp: takes items, tells the others, and loads queries and keys into slots as they are freed."""
    smem, _, _, bars = shared
    _, k_smem, _ = smem
    k_full, _, free = bars
    q_desc, k_desc = descs
    pointers, sizes, ratios, work = where
    k_ratio, k_head = ratios
    table_ptr, cu_ptr, kv_cu_ptr, len_ptr, ticket_ptr = pointers
    B, table_stride, GROUP, LEAVE = sizes
    heads, blocks, items = work
    STAGES: gl.constexpr = stages(D)
    BOX: gl.constexpr = k_desc.block_shape[0]
    BOXES: gl.constexpr = (TILE // BOX) * (D // PANEL)
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
            pages = pages_of(table, 0, kv_len, BOX, PAGE)
            mbarrier.wait(free.index(slot), ((base // STAGES) & 1) ^ 1)
            load_tile_of(k_from, k_boxes, slot * BOXES, k_full.index(slot), pages, 0, kv_start, kv_len, D, PAGE)
            hand_over(q_desc, shared, (b, h, start, local, q_len, kv_len, tiles), done, D)
            pages = pages_of(table, 1, kv_len, BOX, PAGE)
            for j in range(1, tiles):
                i = base + j
                next_pages = pages_of(table, j + 1, kv_len, BOX, PAGE)
                slot = i % STAGES
                mbarrier.wait(free.index(slot), ((i // STAGES) & 1) ^ 1)
                load_tile_of(k_from, k_boxes, slot * BOXES, k_full.index(slot), pages, j, kv_start, kv_len, D, PAGE)
                pages = next_pages
            base += tiles
            done += 1
        # The answer may take its time: the consumers have the tiles of all stages to go.
        ticket = gl.num_programs(0) + gl.atomic_add(ticket_ptr, 1, sem="relaxed")
    say_end(shared, done)


@gluon.jit
def values_producer(v_desc, shared, where, D: gl.constexpr, PAGE: gl.constexpr):
    """Another warp: loads the values of the items that the first one takes, and reads these as a consumer does.

    Of small pages a tile has many boxes, which one warp sends for one after the other: two are done sooner.
    """
    smem, item_smem, q_bars, bars = shared
    _, _, v_smem = smem
    q_full, q_free = q_bars
    _, v_full, free = bars
    pointers, sizes = where
    table_ptr, kv_cu_ptr = pointers
    table_stride, GROUP, v_ratio, v_head = sizes
    STAGES: gl.constexpr = stages(D)
    BOX: gl.constexpr = v_desc.block_shape[0]
    BOXES: gl.constexpr = (TILE // BOX) * (D // PANEL)
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
        pages = pages_of(table, 0, kv_len, BOX, PAGE)
        for j in range(tiles):
            i = base + j
            next_pages = pages_of(table, j + 1, kv_len, BOX, PAGE)
            slot = i % STAGES
            # Values are freed with the keys of the tile behind them.
            mbarrier.wait(free.index((i + 1) % STAGES), (((i + 1) // STAGES) & 1) ^ 1)
            load_tile_of(v_from, v_boxes, slot * BOXES, v_full.index(slot), pages, j, kv_start, kv_len, D, PAGE)
            pages = next_pages
        base += tiles
        done += 1
        mbarrier.wait(q_full, done & 1)
        tiles = got(item_smem, COUNT, 1)
