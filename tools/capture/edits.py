"""Edits of a run: values put in at a site, or one element moved by one ulp.

Legend: K rows to put in, C columns of the site's canonical row.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.capture.passes import keys_of
from samebits.tools.capture.places import Place
from samebits.tools.capture.tensors import copy_strided, dtype_name
from samebits.tools.diff.bits import next_ulp
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.sites import Flip, Replace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from samebits.tools.capture.layout import Layout
    from samebits.tools.capture.passes import Chosen
    from samebits.tools.schema.sites import Edit


class Files:
    """Open safetensors files: reading the header of a capture once per edit would take longer than the edit."""

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}

    def of(self, path: str) -> Any:
        """The open file."""
        if path not in self._open:
            from safetensors import safe_open

            self._open[path] = safe_open(Path(path), "pt")
        return self._open[path]


@dataclass(slots=True)
class Pending:
    """One edit and what became of it."""

    edit: Edit
    files: Files
    met: int = 0
    """Calls of the site."""
    rows: int = 0
    """Rows changed."""
    _keys: torch.Tensor | None = None
    _values: torch.Tensor | None = None

    def load(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys (ascending) and values of a Replace.

        Raises:
            UserError: file or names missing.
        """
        if self._keys is None or self._values is None:
            edit = self.edit
            assert isinstance(edit, Replace)
            from safetensors import SafetensorError

            try:
                file = self.files.of(edit.tensors)
                values, rows = file.get_tensor(edit.value), file.get_tensor(edit.rows)
            except (SafetensorError, OSError) as error:
                raise UserError(
                    edit.tensors, f"cannot be used to replace {edit.site}: {error}", "name a stored tap of a capture"
                ) from error
            if values.dim() != 2 or rows.shape != (len(values), 2):
                raise UserError(
                    edit.tensors,
                    f"{edit.value} is {tuple(values.shape)}, not [rows, columns], or {edit.rows} is not [rows, 2]",
                    "name a stored tap and its row set",
                )
            keys = keys_of(rows[:, 0], rows[:, 1])
            if bool((keys[1:] < keys[:-1]).any()):  # a capture's are in order
                order = keys.argsort()
                keys, values = keys[order], values[order]
            self._keys, self._values = keys, values
            if edit.source is not None:
                self._values = self._values[:, edit.source[0] : edit.source[1]]
        return self._keys, self._values

    def targets(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows of this pass to change, and the rows of the values that go there (None: a flip)."""
        edit = self.edit
        if isinstance(edit, Flip):
            wanted = (edit.sequence << 32) | edit.position
            return (keys == wanted).nonzero().view(-1), None
        own, _ = self.load()
        if not len(own):
            return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        at = torch.searchsorted(own, keys).clamp(max=len(own) - 1)
        hit = (own[at] == keys) & (keys >= 0)
        return hit.nonzero().view(-1), at[hit]


class Edits:
    """All edits of a run, by site."""

    def __init__(self, edits: Iterable[Edit]) -> None:
        files = Files()
        self.pending = [Pending(edit, files) for edit in edits]
        self._by_place: dict[Place, list[Pending]] = {}
        for pending in self.pending:
            self._by_place.setdefault(Place.of(pending.edit.site), []).append(pending)
        self.modules = {pending.edit.site.module for pending in self.pending}
        self.operators = any(pending.edit.site.op for pending in self.pending)

    def at(self, place: Place) -> list[Pending]:
        """Edits of this place."""
        return self._by_place.get(place, [])

    def finish(self) -> None:
        """Every edit must have changed something.

        Raises:
            UserError: an edit whose site never came, or none of whose rows did.
        """
        for pending in self.pending:
            if pending.rows == 0:
                reason = (
                    "this site never occurred in the run"
                    if pending.met == 0
                    else "none of its rows was computed in the run"
                )
                raise UserError(
                    f"edit of {pending.edit.site}",
                    reason,
                    "name a site, and a sequence and position, that a capture of this run lists",
                )


def apply(
    pending: list[Pending], tensor: torch.Tensor, layout: Layout | None, chosen: Chosen, *, in_place: bool
) -> torch.Tensor:
    """The tensor with the edits made: a copy with the same strides, or the tensor itself written in place.

    Raises:
        UserError: the site has no token rows, or dtype or width do not fit.
    """
    out: torch.Tensor | None = None
    for one in pending:
        one.met += 1
        thing = f"edit of {one.edit.site}"
        if layout is None or layout.repeat != 1:
            raise UserError(
                thing,
                f"the tensor here has no token rows of its own (shape {tuple(tensor.shape)})",
                "edit another site",
            )
        rows, source = one.targets(chosen.keys)
        if not len(rows):
            continue
        if out is None:
            out = tensor.detach() if in_place else copy_strided(tensor)
            if not in_place and layout.split is not None and not out.is_contiguous():
                out = out.contiguous()
        _write(one, out, layout, rows, source, thing)
        one.rows += len(rows)
    return tensor if out is None else out


def _write(
    one: Pending, out: torch.Tensor, layout: Layout, rows: torch.Tensor, source: torch.Tensor | None, thing: str
) -> None:
    view = layout.view(out)
    lead, rest = view.shape[: layout.lead], view.shape[layout.lead :]
    columns = prod(rest)
    rows = rows.to(out.device)
    index = (rows,) if layout.lead == 1 else (rows // lead[1], rows % lead[1])
    now_KC = view[index].reshape(len(rows), columns)
    column = one.edit.column
    if source is None:
        if column >= columns:
            raise UserError(thing, f"column {column} of {columns}", "name an existing column")
        now_KC[:, column] = next_ulp(now_KC[:, column])
    else:
        values = one.load()[1][source]
        if values.dtype != out.dtype:
            raise UserError(
                thing,
                f"the value is {dtype_name(values.dtype)}, the site {dtype_name(out.dtype)}",
                "capture both sides in one dtype",
            )
        if column + values.shape[1] > columns:
            raise UserError(
                thing, f"columns {column} to {column + values.shape[1]} of {columns}", "pair the columns of both sides"
            )
        now_KC[:, column : column + values.shape[1]] = values.to(out.device)
    view[index] = now_KC.reshape(len(rows), *rest)
