"""First step of the digest on CUDA: each byte is read once. Values are those of tools/diff/digest.py.

Legend: R rows, B bytes per row, S segments per row, L lanes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

SEGMENT = 8192
LANES = 16


# Only the length tells how wide a load may be. Specialised on the others too, more numbers of rows would compile anew.
@triton.jit(do_not_specialize=["rows", "segments"])
def lane_sums_kernel(  # type: ignore[no-untyped-def]
    bytes_ptr,
    keys_ptr,
    out_ptr,
    rows,
    length,
    segments,
    SEGMENT: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """out[r, s, l] = sum over the bytes j of segment s of bytes[r, s * SEGMENT + j] * keys[j, l], int32."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    segment = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, LANES)
    total = tl.zeros([BLOCK_R, LANES], dtype=tl.int32)
    size = tl.minimum(length - segment * SEGMENT, SEGMENT)
    for start in range(0, size, BLOCK_B):
        byte = start + tl.arange(0, BLOCK_B)
        inside = byte < size
        data = tl.load(
            bytes_ptr + row[:, None] * length + segment * SEGMENT + byte[None, :],
            mask=(row[:, None] < rows) & inside[None, :],
            other=0,
        )
        keys = tl.load(
            keys_ptr + byte[:, None] * LANES + lane[None, :],
            mask=inside[:, None],
            other=0,
        )
        total += tl.dot(data, keys, out_dtype=tl.int32)
    place = (row[:, None] * segments + segment) * LANES + lane[None, :]
    tl.store(out_ptr + place, total, mask=row[:, None] < rows)


def lane_sums(bytes_RB: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """int32 [R, S * LANES] of contiguous int8 [R, B] with int8 keys [SEGMENT, LANES]."""
    rows, length = bytes_RB.shape
    segments = -(-length // SEGMENT)
    out = torch.empty(rows, segments * LANES, dtype=torch.int32, device=bytes_RB.device)
    if out.numel():
        block_rows = 64 if rows * segments >= 64 * 256 else 16
        grid = (triton.cdiv(rows, block_rows), segments)
        lane_sums_kernel[grid](
            bytes_RB,
            keys,
            out,
            rows,
            length,
            segments,
            SEGMENT=SEGMENT,
            LANES=LANES,
            BLOCK_R=block_rows,
            BLOCK_B=128,
            num_warps=4,
        )
    return out
