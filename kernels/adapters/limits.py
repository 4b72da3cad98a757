"""What each table of operators takes, said without loading it: the tables refuse by it, the support table says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from samebits.kernels.adapters.errors import PatchError

Device = Literal["cpu", "cuda"]


@dataclass(slots=True, frozen=True)
class Limit:
    """Of one table on one kind of device."""

    dtypes: tuple[str, ...]
    experts: bool
    """Whether it has operators for a mixture of experts."""

    def check(self, dtype: str, *, experts: bool) -> None:
        """Refuse what the table has no operators for.

        Args:
            dtype: of weights and activations, as in samebits.toml.
            experts: the model is a mixture of experts.

        Raises:
            PatchError: another dtype, or experts where there are none.
        """
        if dtype not in self.dtypes:
            raise PatchError(f"dtype {dtype}", "is outside this table", f"use {' or '.join(self.dtypes)}")
        if experts and not self.experts:
            raise PatchError("mixture of experts", "has no operators in this table", "use a dense model")


LIMITS: Mapping[tuple[str, Device], Limit] = {
    ("vllm", "cpu"): Limit(("bfloat16", "float32"), experts=True),
    ("vllm", "cuda"): Limit(("bfloat16",), experts=False),
    ("samebits", "cpu"): Limit(("bfloat16", "float16", "float32"), experts=False),
    ("samebits", "cuda"): Limit(("bfloat16", "float16"), experts=False),
}
"""(table, device) -> what it takes."""
