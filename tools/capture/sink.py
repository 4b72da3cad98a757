"""Takes one tensor at a site: finds its token rows, records them, makes the edits of the site."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.capture.edits import Edits, apply
from samebits.tools.capture.layout import Layout
from samebits.tools.capture.places import Place
from samebits.tools.capture.store import Chunk, Entry, Store
from samebits.tools.capture.tensors import dtype_name

if TYPE_CHECKING:
    from samebits.tools.capture.passes import Chosen, Pass
    from samebits.tools.schema.sites import CapturePlan, Edit

WHOLE_LIMIT = 64 << 20
"""Bytes: a tensor without token rows above this (a KV cache) is listed, not digested. Weights are digested once."""


class Sink:
    """Everything taken in one run, and the edits still to make.

    Args:
        root: its parameters and buffers are the weights.
        expected_rows: see Recorder.
    """

    def __init__(
        self, root: torch.nn.Module, plan: CapturePlan | None, edits: tuple[Edit, ...], expected_rows: int | None
    ) -> None:
        self.plan = plan
        self.edits = Edits(edits)
        self.store = Store(
            plan is not None and plan.store == "tensors", plan.budget_bytes if plan else 0, expected_rows
        )
        self.untapped: dict[str, str] = {}
        self.running: Pass | None = None
        self._weights = {t.untyped_storage().data_ptr() for t in (*root.parameters(), *root.buffers()) if t.numel()}
        self._weight_digests: dict[tuple[Any, ...], torch.Tensor] = {}
        self._only = frozenset(map(Place.of, plan.sites)) if plan is not None and plan.sites is not None else None
        self._values = frozenset(map(Place.of, plan.values)) if plan is not None and plan.values is not None else None
        self._parts = {(part.module, part.port): part.bounds for part in plan.parts} if plan else {}

    def take(
        self,
        place: Place,
        tensor: torch.Tensor,
        producer: str,
        *,
        record: bool = True,
        in_place: bool = False,
        chosen: Chosen | None = None,
    ) -> torch.Tensor:
        """Record a tensor at a site of the running pass and make the edits of that site.

        Args:
            record: False: only edits.
            in_place: write edits into the tensor itself.
            chosen: the rows of a [rows, ...] tensor, where they are not those of the pass.

        Returns:
            The tensor to go on with: the same object when nothing was edited.
        """
        assert self.running is not None
        if not self._wanted(place):
            if not self.edits.at(place):
                return tensor
            record = False
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            self.untapped[str(place.site)] = f"a {tensor.layout} tensor on {tensor.device.type}"
            return tensor
        entry = self.store.entries.get(place)
        layout = self._layout(tensor, None if entry is None else entry.layout, chosen)
        if chosen is None:
            chosen = self.running.head if layout is not None and layout.head else self.running.all
        if record and self.plan is not None:
            self._record(place, entry, tensor, producer, layout, chosen)
        pending = self.edits.at(place) if self.edits.pending else None
        return apply(pending, tensor, layout, chosen, in_place=in_place) if pending else tensor

    def is_weight(self, tensor: torch.Tensor) -> bool:
        """It lies in a parameter or buffer of the root."""
        return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() in self._weights

    def _wanted(self, place: Place) -> bool:
        return self._only is None or place in self._only

    def _layout(self, tensor: torch.Tensor, like: Layout | None, chosen: Chosen | None) -> Layout | None:
        assert self.running is not None
        if chosen is not None:
            return Layout(None, tuple(range(tensor.dim())), 1)
        if tensor.numel() == 0 or self.is_weight(tensor):
            return None
        return self.running.layout(tuple(tensor.shape), like)

    def _record(
        self,
        place: Place,
        entry: Entry | None,
        tensor: torch.Tensor,
        producer: str,
        layout: Layout | None,
        chosen: Chosen,
    ) -> None:
        assert self.running is not None
        order = self.running.tick()
        if layout is None:
            self._whole(place, order, tensor, producer)
            return
        if not chosen.count:
            return
        keep = self._keeps(place)
        width = tensor.nbytes // chosen.total if keep else 0
        self.store.reserve(chosen.count * (width + 16), place)
        rows = chosen.pick(layout.rows(tensor))
        self.store.add_rows(entry or self._entry(place, order, tensor, producer), chosen, layout, rows, keep=keep)
        bounds = self._parts.get((place.module, place.port), ()) if self._parts and not place.op else ()
        for first, last in pairwise(bounds):
            part = place._replace(port=f"{place.port}[{first}:{last}]")
            own = self._entry(part, order, tensor, producer)
            self.store.add_rows(own, chosen, layout, rows[:, first:last], keep=self._keeps(part))

    def _keeps(self, place: Place) -> bool:
        return self.store.keep_values and (self._values is None or place in self._values)

    def _entry(self, place: Place, order: int, tensor: torch.Tensor, producer: str) -> Entry:
        entry = self.store.entries.get(place)
        if entry is None:
            shape, strides = tuple(tensor.shape), tuple(tensor.stride())
            entry = self.store.entries[place] = Entry(place, order, producer, dtype_name(tensor.dtype), shape, strides)
        return entry

    def _whole(self, place: Place, order: int, tensor: torch.Tensor, producer: str) -> None:
        weight = self.is_weight(tensor)
        if tensor.nbytes > WHOLE_LIMIT and not weight:
            self.untapped[str(place.site)] = (
                f"{tensor.nbytes / 2**20:.0f} MiB without token rows (a cache?), shape {tuple(tensor.shape)}"
            )
            return
        keep = self._keeps(place) and not weight
        self.store.reserve(16 + (tensor.nbytes if keep else 0), place)
        entry = self._entry(place, order, tensor, producer)
        key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype) if weight else None
        known = self._weight_digests.get(key) if key is not None else None
        digest = self.store.add_whole(entry, tensor, known, keep=keep)
        if key is not None:
            self._weight_digests[key] = digest

    def take_digests(
        self, place: Place, digests_T2: torch.Tensor, producer: str, order: int, like: torch.Tensor
    ) -> None:
        """Take over the digests of all T token rows of the running pass, made elsewhere (inside a compiled graph).

        Args:
            digests_T2: int64 [T, 2].
            like: meta tensor with the dtype, shape and strides of what was digested; its rows lie in front.
        """
        assert self.running is not None
        chosen = self.running.all
        if not chosen.count or not self._wanted(place):
            return
        self.store.reserve(16 * chosen.count, place)
        self.store.held += 16 * chosen.count
        layout = Layout(None, tuple(range(like.dim())), 1)
        entry = self._entry(place, order, like, producer)
        entry.layout = layout
        entry.chunks.append(Chunk(chosen, layout, like[0].numel(), digests=chosen.pick(digests_T2).clone()))

    def take_text(self, place: Place, text: str, producer: str) -> None:
        """Record the non-tensor arguments of a call: a whole tap of UTF-8 bytes."""
        if self.plan is None or self.running is None or not self._wanted(place):
            return
        data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        self._whole(place, self.running.tick(), data, producer)
