"""weights.json and modules.json: what a side's weights and modules are."""

from __future__ import annotations

from samebits.tools.schema.base import Model


class WeightView(Model):
    """One weight matrix (or vector) as the operator that uses it sees it."""

    module: str
    """Path of the module that uses it."""
    name: str
    """Parameter name inside the module: weight, bias, ..."""
    dtype: str
    shape: tuple[int, ...]
    rows: tuple[str, ...]
    """Digest (hex, 128 bits) of each row of the first dimension, in order: a merged weight is the concatenation of its
    parts."""
    trivial: bool
    """All rows equal or constant (norm of ones, zero bias): its digest identifies nothing."""
    source: str
    """"parameter", or how a packed weight was read back."""
    narrow: dict[str, tuple[str, ...]] = {}
    """Of a float32 weight, by "bfloat16" or "float16": the digests of the rows stored in that dtype. A row whose values
    that dtype cannot hold to the bit has its float32 digest there; a dtype that can hold no row is left out."""

    def forms(self) -> list[tuple[str, tuple[str, ...]]]:
        """(dtype, digests of the rows) of all dtypes that the same values have: an engine may widen a bias."""
        return [(self.dtype, self.rows), *self.narrow.items()]

    @property
    def widened(self) -> bool:
        """Whether a narrower dtype holds all values to the bit."""
        return any(not set(rows) & set(self.rows) for rows in self.narrow.values())


class ModuleView(Model):
    path: str
    kind: str
    """Class name."""
    calls: int
    """Calls in one forward pass; 0: never called as a module (its forward is inlined or it is a container)."""
    order: int
    """Order of its first call; -1: never called."""


class SideWeights(Model):
    role: str
    weights: tuple[WeightView, ...]
    notes: tuple[str, ...] = ()
    """Read-backs that were not possible, defects found."""


class SideModules(Model):
    role: str
    modules: tuple[ModuleView, ...]
