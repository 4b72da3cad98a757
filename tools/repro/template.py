"""The text of repro.py: what is the same in every one."""

HEAD = '''"""{title}

Run: python repro.py
Exit code: 0 the two sides are equal, 1 they differ, 2 this could not be run here.

rollout: {rollout}
trainer: {trainer}
{shrunk}
"""

from __future__ import annotations

import json
import math
import struct
import sys
from pathlib import Path

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"could not run: {{error}}")
    sys.exit(2)

DEVICE = "{device}"
SCALARS = {scalars!r}
SHOWN = 16
'''

TAIL = '''
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
}
INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def load(path):
    """Tensors of a safetensors file, without the safetensors package."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    out = {}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            data, dtype = bytearray(raw[8 + size + start : 8 + size + end]), DTYPES[entry["dtype"]]
            flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            out[name] = flat.reshape(entry["shape"])
    return out


def bits(x):
    return x.detach().cpu().contiguous().view(INTEGER[x.element_size()])


def show(a, b):
    """Differing elements with their bits; returns how many there are."""
    if a.shape != b.shape or a.dtype != b.dtype:
        print(f"differ: {tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}")
        return 1
    left, right = bits(a), bits(b)
    where = (left != right).nonzero().tolist()
    width = 2 * a.element_size()
    mask = (1 << 4 * width) - 1
    for place in where[:SHOWN]:
        at = tuple(place)
        x, y = int(left[at]), int(right[at])
        print(
            f"{at}: rollout {a[at].item()!r} (0x{x & mask:0{width}x}), "
            f"trainer {b[at].item()!r} (0x{y & mask:0{width}x}), {abs(x - y) if (x < 0) == (y < 0) else 'sign differs'}"
        )
    if len(where) > SHOWN:
        print(f"... and {len(where) - SHOWN} more")
    print(f"{len(where)} of {a.numel()} elements differ")
    return len(where)


def main():
    try:
        stored = load(Path(__file__).parent / "inputs.safetensors")
        inputs = {name[3:]: x.to(DEVICE) for name, x in stored.items() if name.startswith("in.")}
        with torch.no_grad():
            ours, theirs = rollout(inputs, SCALARS), trainer(inputs, SCALARS)
    except Exception as error:
        print(f"could not run: {type(error).__name__}: {error}")
        return 2
    for name, value in (("rollout", ours), ("trainer", theirs)):
        known = stored[name]
        if known.shape != value.shape or known.dtype != value.dtype or not torch.equal(bits(known), bits(value)):
            print(f"note: the {name} side gives other bits here than where this was cut out")
    return 1 if show(ours, theirs) else 0


if __name__ == "__main__":
    sys.exit(main())
'''
