"""What passes between the judge and the process that holds a candidate: lines of JSON, and tensors in shared memory.

No pickles: what comes back is read as numbers, names and raw bytes, each checked. The judge makes the shared memory,
sealed so that the other side cannot take it away under its reading, and copies outputs before it looks at them.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

import torch

DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        *(torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.bool, torch.uint8, torch.int8),
        *(torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64),
    )
}
MOST_BYTES = 1 << 22
"""Longest message."""
MOST_OUTPUTS = 64
ALIGN = 256
PAGE = 1 << 16


class WireError(Exception):
    """The other side is gone or speaks out of turn; the text says which."""


def send(end: socket.socket, message: Mapping[str, Any], descriptors: list[int] | None = None) -> None:
    """One message; descriptors go along."""
    body = json.dumps(message).encode()
    socket.send_fds(end, [struct.pack("<I", len(body))], descriptors or [])
    end.sendall(body)


def receive(end: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """One message, waiting for it, with the descriptors that came along.

    Raises:
        WireError: closed, too long, or no JSON object.
    """
    head, descriptors, _, _ = socket.recv_fds(end, 4, 64)
    head += _exactly(end, 4 - len(head)) if head else b""
    if len(head) < 4:
        raise WireError("closed")
    size = struct.unpack("<I", head)[0]
    if size > MOST_BYTES:
        raise WireError(f"a message of {size} bytes")
    try:
        found = json.loads(_exactly(end, size))
    except ValueError as error:
        raise WireError("a message that is not JSON") from error
    if not isinstance(found, dict):
        raise WireError("a message that is no object")
    return found, descriptors


def _exactly(end: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = end.recv(count - len(parts))
        if not part:
            raise WireError("closed")
        parts += part
    return bytes(parts)


class Memory:
    """Shared memory that only grows: a memfd, seen as bytes. A fresh mapping is made when it has grown."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("samebits", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.descriptor = descriptor
        self.size = 0
        self.bytes = torch.empty(0, dtype=torch.uint8)

    def close(self) -> None:
        """Let go of the descriptor; what is mapped stays."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def grow(self, size: int) -> None:
        """Make it at least so large."""
        if size > self.size:
            size = -(-size * 5 // 4 // PAGE) * PAGE
            if os.fstat(self.descriptor).st_size < size:
                os.ftruncate(self.descriptor, size)
            self.see(size)

    def see(self, size: int) -> None:
        """Map so many bytes, which must be there.

        Raises:
            WireError: they are not.
        """
        if size > self.size:
            if os.fstat(self.descriptor).st_size < size:
                raise WireError("shared memory smaller than announced")
            self.bytes = torch.frombuffer(mmap.mmap(self.descriptor, size), dtype=torch.uint8)
            self.size = size


def span_bytes(x: torch.Tensor) -> int:
    """Bytes from the first to the last element."""
    if not x.numel():
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))) * x.dtype.itemsize


def placed(memory: torch.Tensor, form: Mapping[str, Any]) -> torch.Tensor:
    """The tensor of a form in a buffer of bytes: same strides, same address modulo 256."""
    dtype, offset = DTYPES[form["dtype"]], int(form["offset"])
    whole = memory[offset : offset + int(form["bytes"])].view(dtype)
    return torch.as_strided(whole, form["shape"], form["strides"], whole.storage_offset())


def form_of(x: torch.Tensor) -> dict[str, Any]:
    """How `placed` finds it: name of its dtype, shape, strides, place."""
    return {
        "dtype": str(x.dtype).removeprefix("torch."),
        "shape": list(x.shape),
        "strides": list(x.stride()),
        "offset": x.data_ptr() % ALIGN,
        "bytes": span_bytes(x),
    }


def put_outputs(memory: Memory, outputs: tuple[torch.Tensor, ...]) -> list[dict[str, Any]]:
    """Write outputs one behind the other, contiguous; their forms keep the strides they had."""
    forms: list[dict[str, Any]] = []
    offset = 0
    for out in outputs:
        name = str(out.dtype).removeprefix("torch.")
        if name not in DTYPES or out.layout != torch.strided:
            raise TypeError(f"an output of {out.dtype}, layout {out.layout}")
        size = out.numel() * out.dtype.itemsize
        forms.append(
            {"dtype": name, "shape": list(out.shape), "strides": list(out.stride()), "offset": offset, "bytes": size}
            | {"device": out.device.type}
        )
        offset += -(-size // ALIGN) * ALIGN
    memory.grow(offset)
    for out, form in zip(outputs, forms, strict=True):
        if form["bytes"]:
            place = memory.bytes[form["offset"] : form["offset"] + form["bytes"]]
            place.view(out.dtype).view(out.shape).copy_(out.detach())
    return forms


def take_outputs(memory: Memory, forms: Any, device: torch.device) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...]]:
    """Copies of the outputs, contiguous, on the device they were on; and the strides they had.

    Raises:
        WireError: a form that cannot be true.
    """
    if not isinstance(forms, list) or not 0 < len(forms) <= MOST_OUTPUTS:
        raise WireError("no list of outputs")
    found, strides = [], []
    for form in forms:
        try:
            dtype, shape = DTYPES[form["dtype"]], [int(n) for n in form["shape"]]
            offset, size = int(form["offset"]), int(form["bytes"])
            steps = tuple(int(n) for n in form["strides"])
            count = dtype.itemsize
            for n in shape:
                count *= n
            good = min([0, *shape]) == 0 and offset >= 0 and offset % ALIGN == 0 and size == count
            if not good or len(steps) != len(shape) or form["device"] not in ("cpu", "cuda", "meta"):
                raise WireError("an output whose form cannot be")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WireError("an output without a form") from error
        memory.see(offset + size)
        own = memory.bytes[offset : offset + size].clone().view(dtype).view(shape)
        found.append(own.to(device) if form["device"] == device.type else own)
        strides.append(steps)
    return tuple(found), tuple(strides)
