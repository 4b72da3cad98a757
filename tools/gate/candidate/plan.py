"""What one gate run works on: the process under test, and the calls it is tried with. Belongs to the judge."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from samebits.kernels import candidate as candidates
from samebits.kernels.ops import rows
from samebits.kernels.ops.rows import Args, Case, Draw, RowGroup
from samebits.kernels.registry import Operator
from samebits.tools.gate.candidate.compare import Unequal, outputs_of

if TYPE_CHECKING:
    from samebits.tools.gate.candidate.link import Link

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
SWEEP = {"cuda": (300, 8192), "cpu": (40, 257), "interpreter": (5, 65)}
"""Every M up to the first number, then powers of two and their neighbours up to the second."""

Outputs = tuple[torch.Tensor, ...]


class RedError(Exception):
    """A leg is red."""

    def __init__(self, what: str, call: str = "", first: Unequal | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.call = call
        self.first = first


class CannotRunError(Exception):
    """A leg cannot run on this machine or for this operator; the text says why."""


@dataclass(slots=True)
class Evidence:
    """Why a leg is green."""

    text: str
    checked: int
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """Everything the legs need. `candidate` None: the library's own operator is under test."""

    operator: Operator
    candidate: candidates.Candidate | None
    device: torch.device
    interpreted: bool
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[dict[str, int], ...]
    link: Link
    """To the process that holds what is under test."""

    @property
    def is_its_contract(self) -> bool:
        """The library's own operator on CPU runs its contract: some comparisons could not fail."""
        return self.candidate is None and self.device.type == "cpu" and not self.interpreted

    def call(self, args: Args, what: str) -> Outputs:
        """One call of what is under test; anything it raises is red."""
        return self.link.call(args, what)

    def expected(self, args: Args) -> Outputs:
        """The bits of the contract."""
        return outputs_of(self.operator.contract(**args))

    def settings(self) -> Iterator[tuple[dict[str, int], torch.dtype, str]]:
        """(shape, dtype, both in words)."""
        for dtype in self.dtypes:
            for shape in self.shapes:
                text = " ".join(f"{key}={value}" for key, value in shape.items())
                yield shape, dtype, f"{str(dtype).removeprefix('torch.')}, {text}"

    def cases(self) -> Iterator[tuple[str, Case]]:
        """Every boundary and adversarial call, with its name."""
        for shape, dtype, text in self.settings():
            for case in self.operator.inputs.cases(shape, dtype, self.device, self.interpreted):
                yield f"{text}, {case.name}", case

    def draw(self, shape: dict[str, int], count: int, dtype: torch.dtype, seed: int, exact: bool | None = None) -> Args:
        """One random call."""
        args: Args = self.operator.inputs.draw(
            shape, count, dtype, self.device, seed, self.interpreted if exact is None else exact
        )
        return args

    def groups(self, name: str) -> Iterator[tuple[str, RowGroup]]:
        """Row groups `companies`, `sweep` or `paths`: the operator's own, else the general ones (paths: none)."""
        inputs = self.operator.inputs
        own = getattr(inputs, name, None)
        for shape, dtype, text in self.smaller_settings():
            where = (shape, dtype, self.device, self.interpreted)
            if own is not None:
                found = own(*where)
            elif name == "companies":
                found = rows.companies(inputs.draw, inputs.ROWS, *where)
            elif name == "sweep":
                found = self.general_sweep(inputs.draw, where)
            else:
                return
            for group in found:
                yield f"{text}, {group.name}", group

    def general_sweep(self, draw: Draw, where: tuple[Any, ...]) -> Iterator[RowGroup]:
        """The sweep over rows of dim 0, up to what the operator's memory allows (`SWEEP_MOST` in inputs.py)."""
        dense, largest = SWEEP["interpreter" if self.interpreted else self.device.type]
        largest = min(largest, getattr(self.operator.inputs, "SWEEP_MOST", largest))
        return rows.sweep(draw, self.operator.inputs.ROWS, *where, dense=min(dense, largest), largest=largest)

    def smaller_settings(self) -> Iterator[tuple[dict[str, int], torch.dtype, str]]:
        """All settings on CUDA; on CPU the last shape alone: these legs make hundreds of calls."""
        for shape, dtype, text in self.settings():
            if self.device.type == "cuda" or shape == self.shapes[-1]:
                yield shape, dtype, text


def relative_errors(got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Squared relative error of each row (last dim; a vector is a column of rows), float64; rows whose meaning is 0
    count only when not 0.
    """
    exact = exact.reshape(-1, exact.shape[-1]) if exact.dim() > 1 else exact.reshape(-1, 1)
    off = (got.double().reshape(exact.shape) - exact).square().sum(-1)
    size = exact.square().sum(-1)
    return torch.where(size > 0, off / torch.where(size > 0, size, 1.0), torch.where(off > 0, math.inf, 0.0))
