"""The digest is one definition, counts order, sign of zero and NaN payload, and nothing cancels in it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.tools.diff.digest import (
    LANES,
    SEGMENT,
    byte_keys,
    digest_rows,
    digest_tap,
    digest_taps,
    digest_whole,
    to_hex,
)

M64 = (1 << 64) - 1


def splitmix(stream: int, count: int) -> list[int]:
    out = []
    for i in range(1, count + 1):
        z = ((i + (stream << 40)) * 0x9E3779B97F4A7C15) & M64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
        out.append(z ^ (z >> 31))
    return out


@cache
def keys_of(level: int) -> list[int]:
    """C_j0, C_j1 of every place: 56 bits in eight digits of 7 bits, each less 64."""
    return [sum((((word >> 8 * i) & 127) - 64) * 128**i for i in range(8)) for word in splitmix(level + 1, 2 * SEGMENT)]


def in_words(data: bytes, level: int = 0) -> str:
    """The definition once more, in plain integers."""
    length, odd = len(data), splitmix(0, 2)
    while True:
        words = []
        for start in range(0, len(data), SEGMENT):
            signed = [byte - 256 if byte > 127 else byte for byte in data[start : start + SEGMENT]]
            words += [sum(b * keys_of(level)[2 * j + m] for j, b in enumerate(signed)) & M64 for m in (0, 1)]
        if len(words) <= 2:
            break
        data, level = b"".join(word.to_bytes(8, "little") for word in words), level + 1
    ends = [(word + (length + 1) * (odd[m] | 1)) & M64 for m, word in enumerate(words or [0, 0])]
    return b"".join(word.to_bytes(8, "little") for word in ends).hex()


def hexes(rows: torch.Tensor) -> list[str]:
    return to_hex(digest_rows(rows))


def rows_of(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(1, -1)


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=300))
def test_the_digest_is_its_definition_in_plain_integers(data: bytes) -> None:
    assert hexes(rows_of(data)) == [in_words(data)]


def test_the_definition_holds_over_several_segments() -> None:
    data = bytes(torch.randint(0, 256, (2 * SEGMENT + 37,), generator=torch.Generator().manual_seed(0)).tolist())
    assert hexes(rows_of(data)) == [in_words(data)]


def test_a_tap_and_a_whole_tensor_are_their_definition_too() -> None:
    digests_R2 = digest_rows(torch.randn(700, 8))
    assert to_hex(digest_tap(digests_R2)) == [in_words(digests_R2.numpy().tobytes(), 8)]
    several = [digests_R2[:3], digests_R2[:700], digests_R2[3:6], digests_R2[:0]]
    assert [to_hex(one)[0] for one in digest_taps(several)] == [in_words(d.numpy().tobytes(), 8) for d in several]
    data = torch.randint(0, 256, (3, 5 * SEGMENT + 11), dtype=torch.uint8)
    assert to_hex(digest_whole(data)) == [in_words(data.numpy().tobytes())]


@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("length", [SEGMENT, 3 * SEGMENT, 3 * SEGMENT + 5])
def test_a_row_has_one_digest_however_many_are_taken_at_once(rows: int, length: int) -> None:
    data = torch.randint(0, 256, (rows, length), dtype=torch.uint8, generator=torch.Generator().manual_seed(rows))
    assert hexes(data) == [in_words(bytes(row.tolist())) for row in data[:2]] + hexes(data[2:])
    assert hexes(data)[-1] == in_words(bytes(data[-1].tolist()))


def test_keys_are_small_enough_for_machines_without_vnni_and_take_every_value() -> None:
    """255 * 64 * 2 fits int16. The bound needs every digit to be drawn from all 128 values alike, lane by lane."""
    for level in (0, 1, 8):
        keys = byte_keys(level, torch.device("cpu"))
        assert (int(keys.min()), int(keys.max())) == (-64, 63)
        for lane in range(LANES):
            counts = torch.bincount(keys[:, lane].int() + 64, minlength=128)
            assert int(counts.min()) > 64 * 0.4
            assert int(counts.max()) < 64 * 1.8


def test_levels_and_words_have_keys_of_their_own() -> None:
    """The bound multiplies over words and adds over levels: shared keys would break it."""
    every = [byte_keys(level, torch.device("cpu"))[:, lane] for level in (0, 1, 8) for lane in range(LANES)]
    for number, one in enumerate(every):
        assert all(float((one == other).float().mean()) < 0.03 for other in every[:number])


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=64), st.data())
def test_one_flipped_bit_changes_the_digest(data: bytes, draw: st.DataObject) -> None:
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    other = bytearray(data)
    other[bit // 8] ^= 1 << (bit % 8)
    assert hexes(rows_of(data)) != hexes(rows_of(bytes(other)))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 65535), min_size=2, max_size=64), st.randoms(use_true_random=False))
def test_a_permutation_changes_the_digest(words: list[int], random: object) -> None:
    other = list(words)
    random.shuffle(other)  # type: ignore[attr-defined]
    a, b = (torch.tensor(w, dtype=torch.int32).view(1, -1) for w in (words, other))
    assert (hexes(a) == hexes(b)) == (words == other)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=64), st.integers(1, 64))
def test_appended_zeros_change_the_digest(data: bytes, zeros: int) -> None:
    a = torch.zeros(1, len(data), dtype=torch.uint8) if not data else rows_of(data)
    b = torch.cat([a, torch.zeros(1, zeros, dtype=torch.uint8)], dim=1)
    assert hexes(a) != hexes(b)
    assert to_hex(digest_whole(a)) != to_hex(digest_whole(b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sign_of_zero_and_nan_payload_count(dtype: torch.dtype) -> None:
    ints = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    quiet = torch.full((1, 8), float("nan"), dtype=dtype)
    other = (quiet.view(ints) | 1).view(dtype)
    zero = torch.zeros(1, 8, dtype=dtype)
    assert bool(other.isnan().all())
    assert hexes(quiet) != hexes(other)
    assert hexes(zero) != hexes(-zero)


def test_what_weaker_hashes_confuse_is_told_apart() -> None:
    """Sums of absolute values miss sign and order; an XOR misses order, equal pairs and repeated values."""
    a = torch.tensor([[1.0, -2.0, 3.0, 4.0]])
    permuted, negated, paired = a[:, [1, 0, 3, 2]], -a, torch.tensor([[7.0, 7.0, 3.0, 3.0]])

    def l1(t: torch.Tensor) -> float:
        return float(t.abs().sum())

    def xor(t: torch.Tensor) -> int:
        out = 0
        for word in t.view(torch.int32).flatten().tolist():
            out ^= word
        return out

    assert l1(a) == l1(permuted) == l1(negated)
    assert xor(a) == xor(permuted)
    assert xor(paired) == xor(torch.zeros(1, 4)) == xor(torch.ones(1, 4))
    tensors = [a, permuted, negated, paired, torch.zeros(1, 4), torch.ones(1, 4)]
    assert len({hexes(t)[0] for t in tensors}) == len(tensors)


def test_many_sign_flips_do_not_cancel() -> None:
    """Differences of the highest bit alone are where sums modulo a power of two are weakest."""
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(1, 64, generator=generator)
    rows = base.repeat(20000, 1)
    flips = torch.rand(rows.shape, generator=generator) < 0.5
    digests = digest_rows(torch.where(flips, -rows, rows))
    assert len(digests.unique(dim=0)) == len(digests)
    for column in (0, 1):
        assert len(digests[:, column].unique()) == len(digests)


def test_every_bit_of_a_long_row_counts() -> None:
    """Every place of the first and last segment and of the border, every bit: 128 * 60 rows, no digest twice."""
    length = 2 * SEGMENT + 20
    base = torch.randint(0, 256, (1, length), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    places = [*range(20), *range(SEGMENT - 10, SEGMENT + 10), *range(2 * SEGMENT, length)]
    flipped = base.repeat(8 * len(places), 1)
    for row, (place, bit) in enumerate((place, bit) for place in places for bit in range(8)):
        flipped[row, place] ^= 1 << bit
    assert len({*hexes(flipped), *hexes(base)}) == len(flipped) + 1


def test_segments_exchanged_change_the_digest() -> None:
    a, b = torch.randn(2, SEGMENT // 4).split(1)
    assert hexes(torch.cat([a, b], dim=1)) != hexes(torch.cat([b, a], dim=1))


def test_shape_and_dtype_do_not_enter_but_the_length_of_a_row_does() -> None:
    """What is compared besides digests: tools/align pairs taps of one dtype and width."""
    values = torch.randn(6, 8).to(torch.bfloat16)
    assert hexes(values) == hexes(values.view(torch.int16)) == hexes(values.view(torch.uint8))
    assert to_hex(digest_whole(values)) == to_hex(digest_whole(values.view(3, 16)))
    rows, wide = hexes(values), hexes(values.view(3, 16))
    assert not set(rows) & set(wide)
    assert to_hex(digest_tap(digest_rows(values))) != to_hex(digest_tap(digest_rows(values.view(3, 16))))


def test_no_digest_is_zero_where_all_bytes_are() -> None:
    """Taps in a compiled graph take a zero for "did not run"."""
    for length in (0, 1, 64, SEGMENT, SEGMENT + 1):
        assert bool(digest_rows(torch.zeros(1, length, dtype=torch.uint8)).all())


def test_equal_rows_have_equal_digests_wherever_they_are() -> None:
    row = torch.randn(1, 40).to(torch.bfloat16)
    batch = torch.randn(7, 40).to(torch.bfloat16)
    batch[4] = row
    strided = torch.empty(7, 80, dtype=torch.bfloat16)[:, ::2].copy_(batch)
    assert hexes(batch)[4] == hexes(row)[0] == hexes(strided)[4]


def test_axes_of_size_one_may_have_any_stride() -> None:
    odd = torch.arange(6).view(1, 6)[:, ::6]
    assert odd.stride() == (6, 6)
    assert hexes(odd) == hexes(torch.tensor([[0]]))
    assert to_hex(digest_whole(odd)) == to_hex(digest_whole(torch.tensor(0)))


def test_a_tap_depends_on_the_order_of_its_rows() -> None:
    digests = digest_rows(torch.randn(5, 8))
    assert to_hex(digest_tap(digests)) != to_hex(digest_tap(digests.flip(0)))


@pytest.mark.parametrize("size", [0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 600 * SEGMENT])
def test_the_whole_digest_sees_its_first_and_last_byte(size: int) -> None:
    data = torch.zeros(size, dtype=torch.uint8)
    base = to_hex(digest_whole(data))
    for at in {0, size // 2, size - 1} if size else set():
        other = data.clone()
        other[at] = 1
        assert to_hex(digest_whole(other)) != base


def test_all_dtypes_and_empty_rows_have_digests() -> None:
    for dtype in (torch.bool, torch.int64, torch.float8_e4m3fn, torch.complex64, torch.float64):
        assert len(hexes(torch.ones(2, 3).to(dtype))) == 2
    assert digest_rows(torch.zeros(0, 4)).shape == (0, 2)
    assert len(set(hexes(torch.zeros(2, 0)))) == 1
    with pytest.raises(ValueError, match="rows must be"):
        digest_rows(torch.zeros(3))


def test_the_kernel_gives_the_same_lane_sums() -> None:
    """The CUDA kernel, run by Triton's interpreter: the interpreter must be chosen before Triton is imported."""
    code = """
import torch
from samebits.tools.diff import digest, digest_triton
for rows, length in ((1, 1), (3, 130), (17, 256), (2, 8192 + 5)):
    data = torch.randint(-128, 128, (rows, length), dtype=torch.int8)
    sums = digest_triton.lane_sums(data, digest.byte_keys(0, data.device))
    assert torch.equal(sums, digest.lane_sums(data)), (rows, length)
print("same")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "same", done.stderr
