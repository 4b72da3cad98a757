"""Prefill attention for Hopper (gluon.py): tiles of keys and values by TMA, box by box. D head size."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from samebits.kernels.ops.attention.gluon_parts import PANEL, TILE


@gluon.jit
def boxes_of(slots, desc, D: gl.constexpr):
    """Slots of tiles as boxes, panel by panel."""
    BOX: gl.constexpr = desc.block_shape[0]
    COUNT: gl.constexpr = slots.shape[0] * (TILE // BOX) * (D // PANEL)
    return slots._reinterpret(slots.dtype, [COUNT, BOX, PANEL], desc.layout)


@gluon.jit
def page_of(table_ptr, n, kv_len, PAGE: gl.constexpr):
    """Page of key n, of the last key for those behind it."""
    return gl.load(table_ptr + gl.minimum(n, kv_len - 1) // PAGE)


@gluon.jit
def load_tile(source, boxes, first_box, bar, table_ptr, j, first_row, kv_len, D: gl.constexpr, PAGE: gl.constexpr):
    """One tile of keys or values into its slot: boxes of a page (at most 128 rows) x PANEL columns.

    source: descriptor, first column of the head, rows from page to page. A page number is loaded while the
    box before it is sent for: otherwise each waits for a load. PAGE 0: rows lie side by side from first_row on.
    """
    desc, column, ratio = source
    BOX: gl.constexpr = desc.block_shape[0]
    if PAGE > 0:
        page = page_of(table_ptr, j * TILE, kv_len, PAGE)
    mbarrier.expect(bar, TILE * D * 2)
    for i in gl.static_range(TILE // BOX):
        n = j * TILE + i * BOX
        if PAGE == 0:
            row = first_row + n
        else:
            row = page * ratio + n % PAGE
            if i + 1 < TILE // BOX:
                page = page_of(table_ptr, n + BOX, kv_len, PAGE)
        for panel in gl.static_range(D // PANEL):
            box = boxes.index(first_box + panel * (TILE // BOX) + i)
            tma.async_copy_global_to_shared(desc, [row, column + panel * PANEL], bar, box)


@gluon.jit
def lane():
    """Number of the thread in its warp: a scalar that is not the same in all threads, which Gluon has no word for."""
    word: gl.constexpr = "{ .reg .u32 t; mov.u32 t, %laneid; add.u32 $0, t, $1; }"
    return gl.inline_asm_elementwise(word, "=r,r", [0], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def of_lane(x, i):
    """x of thread i of the warp."""
    word: gl.constexpr = "shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;"
    return gl.inline_asm_elementwise(word, "=r,r,r", [x, i], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def pages_of(table_ptr, j, kv_len, BOX: gl.constexpr, PAGE: gl.constexpr):
    """In thread i of the warp: page of box i of tile j, of the last key for boxes behind it."""
    if PAGE == 0:
        return 0
    n = j * TILE + lane() * BOX
    return gl.load(table_ptr + gl.minimum(n, kv_len - 1) // PAGE)


@gluon.jit
def load_tile_of(source, boxes, first_box, bar, pages, j, first_row, kv_len, D: gl.constexpr, PAGE: gl.constexpr):
    """As `load_tile`, of page numbers that were loaded a tile before. pages: `pages_of` tile j."""
    desc, column, ratio = source
    BOX: gl.constexpr = desc.block_shape[0]
    mbarrier.expect(bar, TILE * D * 2)
    if PAGE > 0:
        # Boxes are whole pages, or the whole tile is one box.
        rows = pages * ratio + (j * TILE) % PAGE
    COUNT: gl.constexpr = TILE // BOX
    AT_ONCE: gl.constexpr = min(COUNT, 4)
    # It is COUNT, which the compiler cannot know: all rows at once would not fit into the registers of the warp.
    count = gl.minimum(COUNT, kv_len + COUNT - 1)
    for start in range(0, count, AT_ONCE):
        for more in gl.static_range(AT_ONCE):
            i = start + more
            row = first_row + j * TILE + i * BOX if PAGE == 0 else of_lane(rows, i)
            for panel in gl.static_range(D // PANEL):
                box = boxes.index(first_box + panel * COUNT + i)
                tma.async_copy_global_to_shared(desc, [row, column + panel * PANEL], bar, box)
