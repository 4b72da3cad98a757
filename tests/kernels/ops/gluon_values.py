"""What a Gluon kernel computes with on the host (gluon_on_host.py): numbers as they are, tensors as expressions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.kernels.ops import gluon_world as world
from tests.kernels.ops.gluon_world import require

ROWS, WARP = 64, 32


class Whole(int):
    """An integer of the kernel."""

    def to(self, _: Any) -> int:
        return int(self)


class Lanes(tuple[int, ...]):
    """An integer that is another one in each thread of a warp."""

    @staticmethod
    def each(operation: Callable[..., int], *operands: Any) -> Lanes:
        whole = [x if isinstance(x, Lanes) else (x,) * WARP for x in operands]
        return Lanes(operation(*numbers) for numbers in zip(*whole, strict=True))


for _name in ("add", "mul", "floordiv", "mod"):
    setattr(Lanes, f"__{_name}__", lambda a, b, name=_name: Lanes.each(getattr(operator, name), a, b))
    setattr(Lanes, f"__r{_name}__", lambda a, b, name=_name: Lanes.each(getattr(operator, name), b, a))


class Expr:
    """A tensor: `id` is equal where it was computed by the same operations from the same things."""

    def __init__(self, *key: Any) -> None:
        self.id = world.W.interned.setdefault(key, len(world.W.interned))

    @property
    def shape(self) -> list[int]:
        return [ROWS, world.W.size]

    @property
    def type(self) -> SimpleNamespace:
        return SimpleNamespace(layout=layout())

    def to(self, *kind: Any, **how: Any) -> Expr:
        return made("to", self, *map(str, kind), *map(str, how.items()))


def layout(*_: Any, **__: Any) -> SimpleNamespace:
    return SimpleNamespace(instr_shape=[16, world.W.size, 16])


def key_of(value: Any) -> Any:
    require(not isinstance(value, Token), "a product is used before it was waited for")
    if isinstance(value, Expr):
        return "tensor", value.id
    return ("layout",) if isinstance(value, SimpleNamespace | list) else (type(value).__name__, repr(value))


def made(operation: str, *operands: Any) -> Expr:
    return Expr(operation, *map(key_of, operands))


for _name in ("add", "sub", "mul", "truediv", "eq", "ne", "lt", "le", "and"):
    setattr(Expr, f"__{_name}__", lambda a, b, name=_name: made(name, a, b))
    setattr(Expr, f"__r{_name}__", lambda a, b, name=_name: made(name, b, a))


class Token:
    """A product that was started."""

    def __init__(self, value: Expr, reads: list[Any]) -> None:
        self.value, self.reads, self.done = value, [(slot, slot.content()) for slot in reads], False
        for slot in reads:
            slot.readers += 1
