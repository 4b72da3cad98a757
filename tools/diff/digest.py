"""The one definition of a digest, VERSION 2: 128 bits over raw bytes in order.

A row of n bytes is cut into segments of SEGMENT bytes (the last one may be shorter). With every byte b_j of a segment
read as int8, and two 56-bit keys per place, C_j0 and C_j1, a segment is known by two words,

    h_m = sum_j b_j * C_jm  mod 2^64,        C_jm = sum_i k_jmi * 128^i,  i = 0..7,  -64 <= k_jmi <= 63

A row of one segment has h as its digest, with (n + 1) * G_m added, G_m odd: zeros appended change it. The words of a
longer row's segments are the bytes of the next level, which has keys of its own, until one segment is left. The digest
of a tap is that of its rows' digests, again with keys of its own.

**How sure is "equal"?** This is a universal hash, not a cryptographic one: nobody chooses the activations to meet the
keys. For two given, different rows of equal length the chance of one digest, over the choice of the keys, is at most
2^-112 per level: take a byte whose difference is d, 0 < |d| <= 255. All other keys given, d * C = t mod 2^64 fixes C
modulo 2^57 at least, and C is uniform on 2^56 neighbouring integers, so that one value of it at most will do. That is
2^-56 for each of the two words, whose keys are independent. A row of up to 8 KiB has one level, one of up to 4 MiB two,
a tap of up to 512 rows one more: two captures of 10^9 rows each are told to be equal wrongly with less than 2^-80.
The keys are fixed (bytes of splitmix64), which puts "looks random" in the place of "is random", as every fixed hash
does. Shape and dtype do not enter: they are compared where digests are.

All arithmetic is exact integer arithmetic, so neither the order of a sum nor the device can matter. The sums over i
and m are taken last: a segment is first an int8 matrix product with the digits k, LANES sums that fit int32. oneDNN and
cuBLAS have it, and on CUDA a Triton kernel reads each byte once. |k| <= 64 keeps pairs of products inside int16, where
CPUs without VNNI would saturate.

Legend: R rows, C columns, B bytes per row, S segments per row, D digits, J places in a segment.
"""

from __future__ import annotations

from functools import cache, lru_cache

import torch

VERSION = 2
"""Also the schema version of Capture artifacts, so that one with other digests is refused."""
SEGMENT = 8192
DIGITS = 8
LANES = 2 * DIGITS
_TAP_LEVEL = 8
"""First level of taps. Rows never come so far: level 7 would need 2^70 bytes."""
_BLOCK = 4096
"""Segments folded at a time on CPU, so that the temporary memory stays in cache."""
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
def byte_keys(level: int, device: torch.device) -> torch.Tensor:
    """int8 [SEGMENT, LANES], values -64..63: lane 2 * i + m of row j is the digit k_jmi."""
    bytes_J2D = _splitmix(level + 1, 2 * SEGMENT).view(torch.uint8).view(SEGMENT, 2, DIGITS)
    digits_JD2 = (bytes_J2D & 127).to(torch.int8).sub_(64).transpose(1, 2)
    return digits_JD2.reshape(SEGMENT, LANES).to(device)


@lru_cache(maxsize=512)
def _first_keys(level: int, device: torch.device, length: int) -> torch.Tensor:
    """The first `length` rows of the keys; kept, since taking a view costs as much as digesting a small tensor."""
    return byte_keys(level, device)[:length]


@cache
def _length_keys(device: torch.device) -> torch.Tensor:
    """int64 [2], odd."""
    return (_splitmix(0, 2) | 1).to(device)


def lane_sums(bytes_RB: torch.Tensor, level: int = 0) -> torch.Tensor:
    """First step.

    Args:
        bytes_RB: int8 [R, B], as raw_bytes gives them.

    Returns:
        int32 [R, S * LANES]: small, and independent of what is later written into the input's memory.
    """
    rows, length = bytes_RB.shape
    if rows == 0 or length == 0:
        return torch.zeros(rows, -(-length // SEGMENT) * LANES, dtype=torch.int32, device=bytes_RB.device)
    if rows == 1 and length > SEGMENT:
        return _one_row(bytes_RB, level)
    if bytes_RB.is_cuda:
        from samebits.tools.diff import digest_triton

        return digest_triton.lane_sums(bytes_RB, byte_keys(level, bytes_RB.device))
    device = bytes_RB.device
    if length <= SEGMENT:
        return torch._int_mm(bytes_RB, _first_keys(level, device, length))
    if length % SEGMENT == 0:
        return torch._int_mm(bytes_RB.view(-1, SEGMENT), byte_keys(level, device)).view(rows, -1)
    if rows * SEGMENT < length:
        return torch.cat([_one_row(row_B[None], level) for row_B in bytes_RB])
    parts = torch.split(bytes_RB, SEGMENT, dim=1)  # read where they are: no copy
    return torch.cat([torch._int_mm(part, _first_keys(level, device, part.shape[1])) for part in parts], dim=1)


def _one_row(bytes_1B: torch.Tensor, level: int) -> torch.Tensor:
    """A long row by itself: its segments are as good as rows."""
    full = bytes_1B.shape[1] // SEGMENT * SEGMENT
    sums = lane_sums(bytes_1B[:, :full].view(-1, SEGMENT), level).view(1, -1)
    return sums if full == bytes_1B.shape[1] else torch.cat([sums, lane_sums(bytes_1B[:, full:], level)], dim=1)


def fold(sums: torch.Tensor, length: int, level: int = 0) -> torch.Tensor:
    """Second step: int64 [R, 2] from int32 [R, S * LANES] of rows of `length` bytes each.

    Args:
        level: that of the lane sums.
    """
    rows, segments = len(sums), sums.shape[1] // LANES
    words = _words(sums.view(rows * segments, LANES))
    while segments > 1:
        level += 1
        bytes_RB = words.view(rows, 2 * segments).view(torch.int8)
        sums = lane_sums(bytes_RB, level)
        segments = sums.shape[1] // LANES
        words = _words(sums.view(rows * segments, LANES))
    if segments == 0:
        words = words.new_zeros(rows, 2)
    return words.add_(_length_keys(sums.device) * (length + 1))


def _words(sums_NL: torch.Tensor) -> torch.Tensor:
    """int64 [N, 2], the words h of N segments."""
    if sums_NL.is_cuda or len(sums_NL) <= _BLOCK:
        return _joined(sums_NL)
    return torch.cat([_joined(part) for part in torch.split(sums_NL, _BLOCK)])


def _joined(sums_NL: torch.Tensor) -> torch.Tensor:
    """Neighbours first: 8 digits become 4, 2, 1."""
    words = sums_NL.view(-1, DIGITS, 2).to(torch.int64)
    for half in (4, 2, 1):
        words = torch.add(words[:, :half], words[:, half:], alpha=1 << (7 * half))
    return words[:, 0]


def raw_bytes(rows_RC: torch.Tensor) -> torch.Tensor:
    """The bytes of each row: int8 [R, B], contiguous; a view where the rows are contiguous already."""
    if rows_RC.dim() != 2:
        raise ValueError(f"rows must be [R, C], not {tuple(rows_RC.shape)}")
    if rows_RC.numel() == 0:
        return torch.zeros(rows_RC.shape[0], 0, dtype=torch.int8, device=rows_RC.device)
    if rows_RC.stride() == (rows_RC.shape[1], 1) and not rows_RC.is_complex():
        return rows_RC.detach().view(torch.int8)
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
    return _digests(rows_RC, 0)


def _digests(rows_RC: torch.Tensor, level: int) -> torch.Tensor:
    with torch.no_grad():
        bytes_RB = raw_bytes(rows_RC)
        return fold(lane_sums(bytes_RB, level), bytes_RB.shape[1], level)


def digest_whole(tensor: torch.Tensor) -> torch.Tensor:
    """Digest of all bytes of a tensor in its logical order, as of one row: int64 [2]."""
    return digest_rows(tensor.detach().reshape(1, -1))[0]


def digest_tap(digests_R2: torch.Tensor) -> torch.Tensor:
    """Digest of a tap from the digests of its rows, already in (sequence, position) order: int64 [2]."""
    return _digests(digests_R2.reshape(1, -1), _TAP_LEVEL)[0]


def digest_taps(taps: list[torch.Tensor]) -> list[torch.Tensor]:
    """digest_tap of each; those with as many rows are taken together."""
    by_rows: dict[int, list[int]] = {}
    for number, digests_R2 in enumerate(taps):
        by_rows.setdefault(len(digests_R2), []).append(number)
    out = list(taps)
    for numbers in by_rows.values():
        together = torch.stack([taps[number].reshape(-1) for number in numbers])
        for number, digest in zip(numbers, _digests(together, _TAP_LEVEL), strict=True):
            out[number] = digest
    return out


def to_hex(digests: torch.Tensor) -> list[str]:
    """32 hex digits per digest of an int64 [R, 2] (or [2]) tensor, first word first, little-endian bytes."""
    text = digests.detach().reshape(-1, 2).cpu().contiguous().numpy().tobytes().hex()
    return [text[start : start + 32] for start in range(0, len(text), 32)]
