"""The bytes behind input tensors of a trace: taken at first use, stored sparsely when large, put back for a replay."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from samebits.tools.schema.artifacts.trace import PAGE, Storage, Value

WHOLE = 8
"""A storage up to this many times the tensor's own extent is taken whole, so that neighbours alias as they did."""
SPARSE_FROM = 1 << 24
"""Bytes from which only non-zero pages are kept."""


def digest(tensor: torch.Tensor) -> str:
    """Hex blake2b-128 over dtype and bytes in row-major order; for one operator's check, not across captures."""
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(raw.numpy().tobytes() + str(tensor.dtype).encode(), digest_size=16).hexdigest()


def extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last one the tensor covers."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


@dataclass(slots=True, frozen=True)
class Snapshot:
    """A copy of (part of) a storage."""

    start: int
    """Byte of the original storage at which the copy starts."""
    size: int
    data: torch.Tensor
    """uint8 [size], or [pages, PAGE] when `pages` is given."""
    pages: torch.Tensor | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Snapshot:
        """Copy what lies behind a tensor, on CPU."""
        own = extent(tensor) * tensor.element_size()
        total = tensor.untyped_storage().nbytes()
        start = 0 if total <= WHOLE * own else tensor.storage_offset() * tensor.element_size()
        size = total if total <= WHOLE * own else own
        view = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage(), start, (size,))  # type: ignore[call-overload]
        if size < SPARSE_FROM:
            return cls(int(start), size, view.to("cpu", copy=True), None)
        full = size // PAGE * PAGE
        paged = view[:full].view(-1, PAGE)
        last = torch.zeros(1, PAGE, dtype=torch.uint8, device=tensor.device)
        last[0, : size - full] = view[full:]
        keep = paged.view(torch.int64).ne(0).any(-1).nonzero()[:, 0]
        data = torch.cat([paged[keep], last]).cpu()
        pages = torch.cat([keep.cpu(), torch.tensor([full // PAGE])])
        return cls(int(start), size, data, pages)

    def offset(self, tensor: torch.Tensor) -> int | None:
        """Where the tensor starts in the copy, in its own elements; None: not inside."""
        at = tensor.storage_offset() * tensor.element_size() - self.start
        end = at + extent(tensor) * tensor.element_size()
        if at < 0 or end > self.size or at % tensor.element_size():
            return None
        return at // tensor.element_size()

    def store(self, number: int, tensors: dict[str, torch.Tensor]) -> Storage:
        """Put the bytes under their names."""
        tensors[f"storage.{number}"] = self.data
        if self.pages is not None:
            tensors[f"pages.{number}"] = self.pages
        return Storage(id=number, bytes=self.size, sparse=self.pages is not None)


def restore(storage: Storage, tensors: dict[str, torch.Tensor], device: str) -> torch.Tensor:
    """The bytes of a storage, uint8 [bytes], in fresh memory of this device."""
    data = tensors[f"storage.{storage.id}"]
    if not storage.sparse:
        return data.to(device, copy=True)
    pages = tensors[f"pages.{storage.id}"]
    whole = torch.zeros(storage.bytes // PAGE + 1, PAGE, dtype=torch.uint8, device=device)
    whole[pages.to(device)] = data.to(device)
    return whole.view(-1)[: storage.bytes]


def tensor_of(value: Value, raw: torch.Tensor) -> torch.Tensor:
    """An input value over restored bytes, with its strides and in its place."""
    dtype: torch.dtype = getattr(torch, value.dtype)
    out = torch.empty(0, dtype=dtype, device=raw.device)
    start = raw.storage_offset() // dtype.itemsize + value.offset
    return out.set_(raw.untyped_storage(), start, value.shape, value.strides)
