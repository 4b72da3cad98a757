"""The source of a plain arithmetic of tools/diff/causes, cut loose from samebits so that it needs only torch."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import TYPE_CHECKING

from samebits.tools.diff.causes.name import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

SHIM = '''class Seen:
    """Inputs by role, scalars by name, and the dtype of the output."""

    def __init__(self, inputs, scalars, dtype):
        self.inputs, self.scalars, self.rollout = inputs, scalars, torch.empty(0, dtype=dtype)

    def __getitem__(self, role):
        return self.inputs[role]

    def has(self, role):
        return role in self.inputs

    def number(self, name, default):
        return float(self.scalars.get(name, default))
'''


def definitions(module: ModuleType) -> dict[str, tuple[str, set[str]]]:
    """Top-level functions and constants of a module: their source and the names they use."""
    text = inspect.getsource(module)
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            continue
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        for name in names:
            found[name] = (ast.get_source_segment(text, node) or "", used)
    return found


def source(kind: str) -> tuple[str, str]:
    """Functions that run the arithmetic of a kind, and the name of the one to call."""
    run = KINDS[kind].run
    module = sys.modules[run.__module__]
    known = definitions(module)
    for value in vars(module).values():
        if (
            inspect.isfunction(value)
            and value.__module__ != module.__name__
            and value.__module__.startswith(f"{__package__.rpartition('.')[0]}.")
        ):
            known |= {k: v for k, v in definitions(sys.modules[value.__module__]).items() if k not in known}
    wanted, open_names = set(), {run.__name__}
    while open_names:
        name = open_names.pop()
        wanted.add(name)
        open_names |= {used for used in known[name][1] if used in known and used not in wanted}
    parts = [text for name, (text, _) in known.items() if name in wanted]
    return "\n\n\n".join([SHIM.rstrip(), *parts]), run.__name__


def call(kind: str, pick: Mapping[str, str], dtype: str) -> str:
    """Body of a side's function."""
    return f"return {source(kind)[1]}(Seen(inputs, scalars, torch.{dtype}), {dict(pick)!r})"
