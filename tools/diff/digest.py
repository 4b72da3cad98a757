"""The one definition of a digest: 128 bits over raw bytes in order.

A row of n bytes is cut into segments of SEGMENT bytes (the last one may be shorter). Every byte b_j of a segment,
read as int8, is multiplied by LANES fixed keys k_j (nonzero, |k| <= 63, from splitmix64), and summed exactly:

    s_l = sum_j b_j * k_jl          l = 0..LANES-1, exact in int32, so the order of the summation cannot matter

One changed byte changes every lane. Two changed bytes (a swap, a pair that would cancel in an XOR) leave one lane as
it was with probability 1/126, hence all of them with 126^-24. The sums, two to a 64-bit word, are then mixed with the
word's place (add, multiply, xor-shift, twice) and folded into two 64-bit words by two sets of odd multipliers, the
length n comes in last: a row with zeros appended has another digest.

All arithmetic is exact integer arithmetic, so every device gives the same value. Not cryptographic: nobody chooses
the activations.

The first step is an int8 matrix product: oneDNN or cuBLAS have it, and on CUDA a Triton kernel reads each byte once.
|k| <= 63 keeps pairs of products inside int16, where CPUs without VNNI would saturate.

Legend: R rows, C columns, B bytes per row, W 64-bit words of sums per row, L lanes.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

SEGMENT = 8192
LANES = 24
_WORDS = LANES // 2
_BLOCK = {"cpu": 1 << 11, "cuda": 1 << 20}
"""Segments folded at a time: on CPU the temporary memory of the second step stays in cache."""
_GOLDEN = 0x9E3779B97F4A7C15
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _shifted(word: torch.Tensor, bits: int) -> torch.Tensor:
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def _splitmix(stream: int, count: int) -> torch.Tensor:
    """int64 [count]: outputs of splitmix64 (Steele, Lea, Flood 2014), one stream per use."""
    z = (torch.arange(1, count + 1, dtype=torch.int64) + (stream << 40)) * _signed(_GOLDEN)
    z = (z ^ _shifted(z, 30)) * _signed(_M1)
    z = (z ^ _shifted(z, 27)) * _signed(_M2)
    return z ^ _shifted(z, 31)


@cache
def byte_keys(device: torch.device) -> torch.Tensor:
    """int8 [SEGMENT, LANES] of the first step, values -63..-1 and 1..63."""
    draw = _shifted(_splitmix(1, SEGMENT * LANES), 33) % 126
    return torch.where(draw < 63, draw - 63, draw - 62).to(torch.int8).view(SEGMENT, LANES).to(device)


@cache
def _word_keys(words: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Place key and two odd multipliers, int64 [words] each."""
    place, first, second = (_splitmix(stream, words).to(device) for stream in (2, 3, 4))
    return place, first | 1, second | 1


def lane_sums(bytes_RB: torch.Tensor) -> torch.Tensor:
    """First step.

    Args:
        bytes_RB: int8 [R, B], as raw_bytes gives them.

    Returns:
        int32 [R, segments * LANES]: small, and independent of what is later written into the input's memory.
    """
    rows, length = bytes_RB.shape
    keys = byte_keys(bytes_RB.device)
    if bytes_RB.is_cuda:
        from samebits.tools.diff import digest_triton

        return digest_triton.lane_sums(bytes_RB, keys)
    if 0 < length <= SEGMENT:
        return torch._int_mm(bytes_RB, keys if length == SEGMENT else keys[:length])
    parts = []
    for start in range(0, length, SEGMENT):
        segment = bytes_RB[:, start : start + SEGMENT].contiguous()
        parts.append(torch._int_mm(segment, keys[: segment.shape[1]]))
    if not parts:
        return torch.zeros(rows, 0, dtype=torch.int32, device=bytes_RB.device)
    return torch.cat(parts, dim=1)


def fold(sums: torch.Tensor, length: int) -> torch.Tensor:
    """Second step: int64 [R, 2] from int32 [R, segments * LANES] of rows of `length` bytes each."""
    block = _fold_on_cpu if sums.device.type == "cpu" and sums.shape[1] else _fold_block
    step = max(1, _BLOCK.get(sums.device.type, 1 << 12) * LANES // max(LANES, sums.shape[1]))
    parts = [block(part, length) for part in torch.split(sums, step)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _fold_on_cpu(sums: torch.Tensor, length: int) -> torch.Tensor:
    """As _fold_block, word by word over all rows: NumPy has unsigned words, and starts a small operation in a third of
    the time."""
    words_RW = sums.contiguous().numpy().view(np.uint64)
    place, first, second = (key.numpy().view(np.uint64)[:, None] for key in _word_keys(words_RW.shape[1], sums.device))
    mixed_WR = np.ascontiguousarray(words_RW.T) + place
    spare_WR = np.empty_like(mixed_WR)
    for multiplier in (_M1, _M2):
        np.multiply(mixed_WR, np.uint64(multiplier), out=mixed_WR)
        np.right_shift(mixed_WR, np.uint64(32), out=spare_WR)
        np.bitwise_xor(mixed_WR, spare_WR, out=mixed_WR)
    folded_R2 = np.empty((len(words_RW), 2), dtype=np.uint64)
    for side, key in enumerate((first, second)):
        np.multiply(mixed_WR, key, out=spare_WR)
        np.add.reduce(spare_WR, axis=0, out=folded_R2[:, side])
    folded_R2 += np.uint64(length * _GOLDEN & (1 << 64) - 1)
    folded_R2 ^= folded_R2 >> np.uint64(29)
    folded_R2 *= np.uint64(_M1)
    folded_R2 ^= folded_R2 >> np.uint64(32)
    return torch.from_numpy(folded_R2.view(np.int64))


def _fold_block(sums: torch.Tensor, length: int) -> torch.Tensor:
    words_RW = sums.view(torch.int64) if sums.shape[1] else sums.to(torch.int64)
    place, first, second = _word_keys(words_RW.shape[1], words_RW.device)
    mixed = words_RW + place
    halves = mixed.view(torch.int32).view(*mixed.shape, 2)
    for multiplier in (_M1, _M2):
        mixed.mul_(_signed(multiplier))
        halves[..., 0] ^= halves[..., 1]  # word ^= word >> 32; little-endian
    product = mixed * first
    folded = torch.stack([product.sum(1), torch.mul(mixed, second, out=product).sum(1)], dim=1)
    folded += _signed(length * _GOLDEN)
    folded = (folded ^ _shifted(folded, 29)) * _signed(_M1)
    return folded ^ _shifted(folded, 32)


def raw_bytes(rows_RC: torch.Tensor) -> torch.Tensor:
    """The bytes of each row: int8 [R, B], contiguous; a view where the rows are contiguous already."""
    if rows_RC.dim() != 2:
        raise ValueError(f"rows must be [R, C], not {tuple(rows_RC.shape)}")
    if rows_RC.numel() == 0:
        return torch.zeros(rows_RC.shape[0], 0, dtype=torch.int8, device=rows_RC.device)
    plain = torch.view_as_real(rows_RC) if rows_RC.is_complex() else rows_RC
    whole = plain.detach().contiguous()
    # Axes of size 1 may carry any stride, and views to another width refuse it.
    return whole.as_strided((whole.numel(),), (1,)).view(torch.int8).view(len(rows_RC), -1)


def digest_rows(rows_RC: torch.Tensor) -> torch.Tensor:
    """Digest of every row.

    Args:
        rows_RC: [R, C], any dtype and device.

    Returns:
        int64 [R, 2] on the same device.
    """
    with torch.no_grad():
        bytes_RB = raw_bytes(rows_RC)
        return fold(lane_sums(bytes_RB), bytes_RB.shape[1])


def digest_whole(tensor: torch.Tensor) -> torch.Tensor:
    """Digest of all bytes of a tensor in its logical order: int64 [2]. Its shape and dtype do not enter.

    The bytes are cut into rows of SEGMENT bytes, the digests of those are the bytes of the next level; the length of
    the whole is folded in at the end.
    """
    return _whole_rows(raw_bytes(tensor.detach().reshape(1, -1)))[0]


def _whole_rows(flat_NB: torch.Tensor) -> torch.Tensor:
    """digest_whole of each of N byte strings of one length: int64 [N, 2]."""
    count, length = flat_NB.shape
    while True:
        size = flat_NB.shape[1]
        full = size // SEGMENT * SEGMENT
        parts = [digest_rows(flat_NB[:, :full].reshape(-1, SEGMENT)).view(count, -1)] if full else []
        if full < size or not parts:
            parts.append(digest_rows(flat_NB[:, full:].contiguous()))
        digests = torch.cat(parts, dim=1)
        if digests.shape[1] == 2:
            break
        flat_NB = digests.view(torch.int8)
    closing = torch.tensor([[length, 0]], dtype=torch.int64, device=flat_NB.device).expand(count, 2)
    return digest_rows(torch.cat([digests, closing], dim=1))


def digest_tap(digests_R2: torch.Tensor) -> torch.Tensor:
    """Digest of a tap from the digests of its rows, already in (sequence, position) order: int64 [2]."""
    return digest_whole(digests_R2)


def digest_taps(taps: list[torch.Tensor]) -> list[torch.Tensor]:
    """digest_tap of each; those with as many rows are taken together."""
    by_rows: dict[int, list[int]] = {}
    for number, digests_R2 in enumerate(taps):
        by_rows.setdefault(len(digests_R2), []).append(number)
    out = list(taps)
    for numbers in by_rows.values():
        together = torch.stack([taps[number].reshape(-1) for number in numbers])
        for number, digest in zip(numbers, _whole_rows(raw_bytes(together)), strict=True):
            out[number] = digest
    return out


def to_hex(digests: torch.Tensor) -> list[str]:
    """32 hex digits per digest of an int64 [R, 2] (or [2]) tensor, first word first, little-endian bytes."""
    text = digests.detach().reshape(-1, 2).cpu().contiguous().numpy().tobytes().hex()
    return [text[start : start + 32] for start in range(0, len(text), 32)]
