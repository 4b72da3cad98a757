"""Trace: what one side's operators did inside a module, in one forward pass.

A trace is two files of a Capture artifact (or of any folder), `trace-K.json` and `trace-K.safetensors`, K = 0, 1, ...:

* `trace-K.json` is `Trace` below: the dispatcher calls in order, each argument a constant or a value number.
* `trace-K.safetensors` holds the bytes of every storage that the calls read and did not make themselves, as it was at
  its first use: `storage.N` uint8 [bytes], or, when it is large and mostly zero (a KV pool), uint8 [pages, PAGE] with
  `pages.N` int64 [pages]. `pass.rows` int32 [T, 2] are the (sequence, position) of the pass's T token rows (-1:
  padding), `pass.head` int64 [R] the rows that reach the head.

Values that share a storage number share memory, so in-place operators replay as they ran. Every call carries the
digests of what it made, so that a replay says which operator first gave other bits. One trace covers one module call in
one pass: the pass that computes a chosen (sequence, position).
"""

from __future__ import annotations

from typing import Any

from samebits.tools.schema.base import Model

FORMAT = 1
PAGE = 4096
"""Bytes of one page of a sparsely stored storage."""


class Value(Model):
    """One tensor that a call reads or makes."""

    id: int
    storage: int
    """Values with the same number share memory."""
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    offset: int
    """Elements from the start of the stored bytes; meaningful for inputs alone."""
    made: bool
    """True: the result of a call; False: an input, whose storage is in the safetensors file."""
    label: str = ""
    """What it is: a parameter's name, a site, or empty."""


class Storage(Model):
    """The bytes behind one or more input values."""

    id: int
    bytes: int
    sparse: bool = False
    """Only the pages named by `pages.ID` are stored; all others are zero."""


class Call(Model):
    """One operator call below autograd."""

    op: str
    """`aten.mul.Tensor`, `_C.rotary_embedding.default`."""
    args: tuple[Any, ...]
    """JSON constants as they are; {"value": id}; {"scalar": n} (a number a call returned); {"dtype": "float16"};
    {"device": "cpu"}; {"layout": "strided"}; {"memory_format": "contiguous_format"}; {"float": "inf"}, "-inf",
    "nan"."""
    kwargs: dict[str, Any] = {}
    outs: tuple[Any, ...] = ()
    """Per result {"value": id}, {"scalar": n} or None; a list for a result that is a list of tensors."""
    wrote: tuple[int, ...] = ()
    """Values it changed in place, as its schema says."""
    module: str = ""
    """Module whose call it ran in (with `@CALL` when that is not the first), as in a Site."""
    index: int = 0
    """Which call of this operator within that module call, as in a Site."""
    digests: dict[str, str] = {}
    """Hex blake2b-128 of the bytes of each value made or changed, by value id, right after the call."""

    def site(self, port: str) -> str:
        """The site string of one of its ports: `model.norm/aten.mul.Tensor#1:out0`."""
        return f"{self.module}/{self.op}#{self.index}:{port}"


class Port(Model):
    """A value at a moment: in-place operators give one value several contents."""

    value: int
    place: int
    """An input holds right before the call of this number, an output right after it."""


class Trace(Model):
    """trace-K.json."""

    format: int = FORMAT
    imports: tuple[str, ...] = ()
    """Python modules to import so that every operator exists: "vllm._C"."""
    inference: bool = False
    """Whether it ran under inference_mode (which decides what the dispatcher sees)."""
    values: tuple[Value, ...]
    storages: tuple[Storage, ...]
    calls: tuple[Call, ...]
    ports: dict[str, Port] = {}
    """Where the sites of module calls are, by site string."""
    batch: tuple[int, int] | None = None
    """(B, L) when the tensors of the pass are [B, L, ...], B * L = T token rows; None: flat [T, ...] or [1, T, ...]."""
    notes: tuple[str, ...] = ()
    """What could not be recorded as it ran."""

    def port(self, site: str) -> Port:
        """Where a site is: one marked while recording, or a port of an operator call.

        Raises:
            LookupError: nothing of this name was recorded.
        """
        if site in self.ports:
            return self.ports[site]
        _, _, port = site.rpartition(":")
        for place, call in enumerate(self.calls):
            if call.site(port) == site:
                args = (call.args, tuple(call.kwargs.values()))
                found = numbers(args, "value") if port.startswith("in") else [*numbers(call.outs, "value"), *call.wrote]
                number = int(port.removeprefix("in").removeprefix("out") or 0)
                if number < len(found):
                    return Port(value=found[number], place=place)
        raise LookupError(f"the trace has no {site}")


def numbers(argument: Any, kind: str) -> list[int]:
    """Value (or scalar) numbers in an argument, a result, or a nest of them, in order."""
    if isinstance(argument, dict):
        return [argument[kind]] if kind in argument else []
    if isinstance(argument, list | tuple):
        return [number for item in argument for number in numbers(item, kind)]
    return []
