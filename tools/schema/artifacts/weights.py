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
