"""The fast implementation of paged attention on CUDA: which kernel computes which rows. No choice here moves a bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import triton
from torch import Tensor

from samebits.kernels.ops.attention.layout import SEGMENT_TILES, TILE, exponent_scale
from samebits.kernels.ops.attention.triton import ROWS, decode_kernel, merge_kernel, prefill_kernel
from samebits.kernels.ops.launch import Boxes, Form
from samebits.kernels.ops.ran import ran

BLOCK = 128
BOX_ROWS = 128


def splits_for(batch: int, key_heads: int, most_segments: int, processors: int) -> int:
    """Programs per sequence and key head: one program per multiprocessor, and at most one per segment."""
    return max(1, min(processors // (batch * key_heads), most_segments))


def decode_form(batch: int, key_heads: int, segments: int, processors: int) -> tuple[int, int, int]:
    """(splits, stages, segments that the merge reads at once): what decode is compiled for, by the batch's shape."""
    splits = splits_for(batch, key_heads, segments, processors)
    # Alone on its multiprocessor a program buffers two tiles; two programs that share one hide each other's latency.
    stages = 5 if batch * key_heads * splits <= processors else 3
    return splits, stages, 8 if segments <= 8 else 32


@cache
def processors_of(device: torch.device) -> int:
    """Multiprocessors of a GPU; of a CPU, where kernels are interpreted: 4."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@cache
def l2_bytes_of(device: torch.device) -> int:
    """Size of a GPU's L2."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def sections_for(key_heads: int, head_bytes: int, l2_bytes: int) -> int:
    """Sections of key heads that prefill walks one after the other; head_bytes: keys and values of a sequence and head.

    One where L2 holds the whole sequence; else so many that a section takes a third of L2. A batch of short sequences
    must not be cut: all programs that run at once would be the first to read their keys.
    """
    sections = 1
    if key_heads * head_bytes > l2_bytes:
        while key_heads // sections % 2 == 0 and key_heads // sections * head_bytes > l2_bytes // 3:
            sections *= 2
    return sections


def blocks_for(tokens: int, batch: int, rows: int) -> int:
    """Blocks of `rows` query tokens of which none spans two sequences, at most; more than one sequence may need a
    block for itself at each of their borders."""
    return tokens // rows + batch if batch > 1 else -(-tokens // rows)


def run(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    out: Tensor | None = None,
    min_query_len: int = 0,
    facts: Facts | None = None,
) -> Tensor:
    """Arguments of op.attention: [T, H, D] in the dtype of q. out: where to write it, contiguous.

    min_query_len: tokens of the shortest query that has any, where the host knows it: saves a launch for short ones.
    facts: `facts_of` the caches, where they are known.
    """
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    heads, batch = q.shape[1], seq_lens.shape[0]
    if q.shape[0] == 0 or batch == 0:
        return out
    group = heads // k_cache.shape[2]
    long_ones = max_query_len * group > ROWS
    # Where no sequence is short, decode has nothing to do; where all have the longest length, none is.
    shortest = max_query_len if q.shape[0] == batch * max_query_len else min_query_len
    if shortest * group <= ROWS:
        most_rows = min(max_query_len, ROWS // group)
        decode(q, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens, most_rows, max_seq_len, scale, out)
    if not long_ones:
        return out
    facts = facts or facts_of(k_cache, v_cache)
    if facts.hopper is not None and of_boxes(q):
        tables = block_table, cu_seqlens_q, seq_lens
        prefill_hopper(q, k_cache, v_cache, *tables, max_seq_len, scale, out, known=facts.hopper)
    else:
        prefill(q, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens, scale, out)
    return out


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    most_rows: int,
    max_seq_len: int,
    scale: float,
    out: Tensor,
    splits: int | None = None,
    warps: int = 4,
    stages: int | None = None,
    early: bool = True,
    segment_tiles: int = SEGMENT_TILES,
) -> None:
    """The sequences whose rows (query tokens x group) fit one decode program.

    Partial results have rows of their own: in a mixed call the tokens of long prompts need none.
    """
    heads, size, key_heads, batch = *q.shape[1:], k_cache.shape[2], seq_lens.shape[0]
    segments = triton.cdiv(max(max_seq_len, 1), segment_tiles * TILE)
    best, staged, steps = decode_form(batch, key_heads, segments, processors_of(q.device))
    splits, stages = best if splits is None else splits, staged if stages is None else stages
    # GPUs before Hopper know no launch that begins while the one before it runs.
    early = early and splits > 1 and not _interpreted() and not (q.is_cuda and _major(q.device) < 9)
    ran("attention decode" if splits == 1 else "attention decode, merge")
    partial = stat = out
    rows = max(most_rows, 1) * (heads // key_heads)
    if splits > 1:
        partial, stat = (q.new_empty((batch * key_heads * rows * segments, n), dtype=torch.float32) for n in (size, 2))
    form = decode_of(
        key_heads, heads // key_heads, size, k_cache.shape[1], splits == 1, early, segment_tiles, warps, stages
    )
    form(
        (batch * key_heads * splits, 1, 1),
        (q, k_cache, v_cache, out, partial, stat, block_table, cu_seqlens_q, seq_lens),
        (
            exponent_scale(scale),
            block_table.stride(0),
            q.stride(0),
            *k_cache.stride()[:3],
            *v_cache.stride()[:3],
            segments,
            rows,
            splits,
        ),
    )
    if splits > 1:
        merge_of(heads // key_heads, size, heads, segment_tiles, steps, early)(
            (heads * max(most_rows, 1), batch, 1), (partial, stat, out, cu_seqlens_q, seq_lens), (segments, rows)
        )


@cache
def decode_of(
    key_heads: int,
    group: int,
    size: int,
    page: int,
    final: bool,
    early: bool,
    segment_tiles: int,
    warps: int,
    stages: int,
) -> Form:
    """The decode kernel."""
    shape = {"G": key_heads, "GROUP": group, "D": size, "PAGE": page, "FINAL": final, "EARLY": early}
    tiles = {"R": ROWS, "TILE": TILE, "SEGMENT_TILES": segment_tiles}
    return Form(decode_kernel, **shape, **tiles, num_warps=warps, num_stages=stages)


@cache
def merge_of(group: int, size: int, heads: int, segment_tiles: int, steps: int, early: bool) -> Form:
    """The merge of what decode's programs found, launched before they end where `early`."""
    shape = {"GROUP": group, "D": size, "H": heads, "R": ROWS, "SEGMENT": segment_tiles * TILE, "STEPS": steps}
    options: dict[str, bool] = {"launch_pdl": True} if early else {}
    return Form(merge_kernel, **shape, EARLY=early, num_warps=1, **options)


def prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    scale: float,
    out: Tensor,
    leave: int = ROWS,
    warps: int = 8,
    stages: int = 2,
) -> None:
    """The other sequences, on any GPU: tiles of BLOCK query tokens."""
    tokens, heads, size = q.shape
    batch = seq_lens.shape[0]
    ran("attention prefill")
    strides = (block_table.stride(0), q.stride(0), *k_cache.stride()[:3], *v_cache.stride()[:3])
    prefill_of(heads, heads // k_cache.shape[2], size, k_cache.shape[1], leave, warps, stages)(
        (heads, tokens // BLOCK + batch, 1),
        (q, k_cache, v_cache, out, block_table, cu_seqlens_q, seq_lens),
        (exponent_scale(scale), batch, *strides),
    )


@cache
def prefill_of(heads: int, group: int, size: int, page: int, leave: int, warps: int, stages: int) -> Form:
    """The prefill kernel of any GPU."""
    shape = {"H": heads, "GROUP": group, "D": size, "PAGE": page, "LEAVE": leave}
    tiles = {"BLOCK": BLOCK, "TILE": TILE, "SEGMENT_TILES": SEGMENT_TILES}
    return Form(prefill_kernel, **shape, **tiles, num_warps=warps, num_stages=stages)


@dataclass(slots=True, frozen=True)
class Hopper:
    """How the Hopper kernel reads keys and values: their boxes; pages in slots, and heads in elements."""

    boxes: tuple[Boxes, Boxes]
    strides: tuple[int, int, int, int]


@dataclass(slots=True, frozen=True)
class Facts:
    """What launches ask of caches at every call and is always the same. hopper: None where its kernel has no boxes."""

    hopper: Hopper | None


def facts_of(k_cache: Tensor, v_cache: Tensor) -> Facts:
    """Worked out from shape, strides, address and device."""
    fits = k_cache.is_cuda and _major(k_cache.device) == 9 and k_cache.dtype != torch.float32
    fits = fits and k_cache.shape[1] >= 16 and _boxes(k_cache) and _boxes(v_cache)
    return Facts(hopper_of(k_cache, v_cache, min(k_cache.shape[1], BOX_ROWS)) if fits else None)


def hopper_of(k_cache: Tensor, v_cache: Tensor, rows: int) -> Hopper:
    """`Hopper` of caches in boxes of so many slots."""
    from samebits.kernels.ops.attention.boxes import of_rows

    (k_page, k_slot, k_head, _), (v_page, v_slot, v_head, _) = k_cache.stride(), v_cache.stride()
    strides = k_page // k_slot, v_page // v_slot, k_head, v_head
    return Hopper((of_rows(k_cache, rows), of_rows(v_cache, rows)), strides)


def fits_hopper(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> bool:
    """Whether the Hopper kernel's TMA boxes describe these tensors."""
    return facts_of(k_cache, v_cache).hopper is not None and of_boxes(q)


def of_boxes(q: Tensor) -> bool:
    """Whether rows of q are where boxes may begin."""
    return q.data_ptr() % 16 == 0 and q.stride(0) % 8 == 0


@cache
def _major(device: torch.device) -> int:
    return torch.cuda.get_device_capability(device)[0]


def _boxes(cache: Tensor) -> bool:
    """A slot is one row of columns: head g begins at column g * head, and may be followed by other data (vLLM keeps
    keys and values of a head side by side)."""
    page, slot, head, _ = cache.stride()
    heads, size = cache.shape[2:]
    inside = heads == 1 or (head >= size and (heads - 1) * head + size <= slot)
    return cache.data_ptr() % 16 == 0 and inside and head % 8 == 0 and slot % 8 == 0 and page % slot == 0


def prefill_hopper(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    max_seq_len: int,
    scale: float,
    out: Tensor,
    leave: int = ROWS,
    cu_seqlens_k: Tensor | None = None,
    segment_tiles: int = SEGMENT_TILES,
    known: Hopper | None = None,
) -> None:
    """As `prefill`, in Gluon. max_seq_len: orders the work, no more. cu_seqlens_k: the caches are one page that
    holds the keys of all sequences side by side."""
    tokens, heads, size = q.shape
    batch, key_heads, slots = seq_lens.shape[0], k_cache.shape[2], k_cache.shape[1]
    whole = cu_seqlens_k is not None
    known = known or hopper_of(k_cache, v_cache, BOX_ROWS if whole else min(slots, BOX_ROWS))
    form, rows, parts, of_queries = prefill_hopper_of(size, 0 if whole else slots, segment_tiles)
    sections = sections_for(key_heads, max_seq_len * size * 2 * q.element_size(), l2_bytes_of(q.device))
    ran("attention prefill (Hopper)")
    blocks, group = blocks_for(tokens, batch, parts * rows), heads // key_heads
    items = heads * blocks
    # A counter of tickets of this launch alone: two streams may be at it at once.
    tables = block_table, cu_seqlens_q, cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k, seq_lens
    strides = block_table.stride(0), *known.strides
    form(
        (min(items, processors_of(q.device)), 1, 1),
        (out, *tables, q.new_zeros(1, dtype=torch.int32)),
        (exponent_scale(scale), batch, *strides, heads, group, leave, heads // sections, blocks, items),
        (of_queries(q, rows), *known.boxes),
    )


@cache
def prefill_hopper_of(size: int, page: int, segment_tiles: int) -> tuple[Form, int, int, Callable[..., Boxes]]:
    """The prefill kernel of Hopper, rows of a part of its block of queries, its parts, and how queries are boxes.

    page: 0 where the caches are one page of any size.
    """
    from samebits.kernels.ops.attention.boxes import of_queries
    from samebits.kernels.ops.attention.gluon import prefill_hopper_kernel
    from samebits.kernels.ops.attention.gluon_parts import ROWS as PART_ROWS
    from samebits.kernels.ops.attention.gluon_parts import parts

    form = Form(prefill_hopper_kernel, D=size, PAGE=page, SEGMENT_TILES=segment_tiles, num_warps=4)
    return form, PART_ROWS.value, parts(size), of_queries


def _interpreted() -> bool:
    return not isinstance(decode_kernel, triton.runtime.JITFunction)
