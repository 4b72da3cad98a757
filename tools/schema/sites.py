"""Where a tensor is taken, and what is done to it there. Shared by both sides; no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from samebits.tools.schema.base import Model


class Site(Model):
    """A named place in a model: a port of a module call, or of an operator call inside a module.

    The string form is `model.layers.0.mlp.down_proj:in0`, or with an operator `model.norm/aten.mul.Tensor#1:out0`;
    a module that is called more than once in one forward has `@CALL` behind its name.
    """

    module: str
    """Dotted path as named_modules() gives it; "" is the root; "logprob" is the side's own logprob step."""
    port: str
    """in0, in1, ... (tensor arguments in order, keyword ones by name as `in.NAME`) or out0, out1, ..."""
    call: int = 0
    """Which call of this module within one forward pass (a shared rotary module is called once per layer)."""
    op: str = ""
    """Dispatcher operator (`aten.mul.Tensor`, `_C.rotary_embedding.default`) or "" for the module itself."""
    index: int = 0
    """Which call of that operator within this module call."""

    def __str__(self) -> str:
        call = f"@{self.call}" if self.call else ""
        op = f"/{self.op}#{self.index}" if self.op else ""
        return f"{self.module}{call}{op}:{self.port}"


class Parts(Model):
    """Columns of a module's tap that get taps of their own: a merged qkv is then compared by digest with three
    linears."""

    module: str
    port: str = "out0"
    bounds: tuple[int, ...]
    """Ascending column borders: (0, 256, 384, 512) gives `out0[0:256]`, `out0[256:384]`, `out0[384:512]`."""


class CapturePlan(Model):
    """What to record during one pass."""

    level: Literal["module", "operator"] = "module"
    """module: ports of module calls. operator: those too, and every dispatcher operator inside `modules`, so that one
    capture holds both in one execution order."""
    ports: Literal["chosen", "all"] = "chosen"
    """Whose module ports are tapped: those of `modules`, or of every module (and the side's own steps such as
    logprob)."""
    modules: tuple[str, ...] | None = None
    """Operator level: modules whose operators are tapped (those of a submodule belong to the deepest module named).
    Module level: modules to tap. None: all."""
    store: Literal["digest", "tensors"] = "digest"
    sequences: tuple[int, ...] | None = None
    """Indices of rollout sequences whose rows are kept; None: all."""
    tokens: tuple[int, ...] | None = None
    """Where an engine rescores each sampled token by a prefill: only the rows of the prefills that score these (counted
    over all sequences) are kept, so that a row of several prefills is kept as it was in that one. None: all."""
    replay: bool = False
    """Operator level: run each operator again on its recorded inputs and compare bits (proof (a))."""
    budget_bytes: int = Field(default=4 << 30, ge=1)
    parts: tuple[Parts, ...] = ()
    sites: tuple[Site, ...] | None = None
    """Of what level and ports give, only these; None: all. The others run as they do without capture."""
    values: tuple[Site, ...] | None = None
    """With stored tensors: the sites whose values are kept; None: all. The others are digested."""


class Replace(Model):
    """Put these rows in as the site's value (proof (b)). Rows not named keep their own value.

    A tap of the same site in the same pass records the value BEFORE the edit: what this side computed by itself. So one
    pass in which every paired site is recorded and then replaced shows which operators differ by themselves.
    """

    kind: Literal["replace"] = "replace"
    site: Site
    tensors: str
    """Path of a safetensors file, usually taps.safetensors of the other side's capture."""
    value: str = "value"
    """Name in it of the values [rows, columns]."""
    rows: str = "rows"
    """Name in it of their rows [rows, 2] int32 (sequence, position)."""
    source: tuple[int, int] | None = None
    """Columns [a, b) of the stored value to use; None: all."""
    column: int = 0
    """First column of this site's canonical row that they cover."""


class Flip(Model):
    """Move one element by one ulp (step 1: could the check fail?)."""

    kind: Literal["flip"] = "flip"
    site: Site
    sequence: int
    position: int
    column: int = 0


Edit = Annotated[Replace | Flip, Field(discriminator="kind")]
