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
    # float32 products on CUDA exist, untuned; no engine was run with them.
    ("samebits", "cuda"): Limit(("bfloat16", "float16"), experts=False),
}
"""(table, device) -> what it takes."""


def check(table: str, device: str, dtype: object, *, experts: bool) -> None:
    """Refuse what a table does not take on a device.

    Args:
        device: "cpu" or "cuda".
        dtype: a torch.dtype, or its name.
        experts: the model is a mixture of experts.

    Raises:
        PatchError: another device or dtype, or experts where there are none.
    """
    limit = next((limit for known, limit in LIMITS.items() if known == (table, device)), None)
    if limit is None:
        devices = " or ".join(where for name, where in LIMITS if name == table)
        raise PatchError(f"device {device}", f'is not one of the table "{table}"', f"use {devices}")
    limit.check(str(dtype).removeprefix("torch."), experts=experts)
