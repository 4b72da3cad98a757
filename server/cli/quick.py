"""Imports the protocol's package in two thirds of its time.

Half of what `import mcp` does is of no use to a server over standard input: its client half, and validators of some
hundred message types of which a session uses a dozen. Nothing is taken away: each is made when it is first asked for.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def imports() -> Iterator[None]:
    """While this lasts models are declared without their validators (pydantic's defer_build), and no garbage is looked
    for: imports make much that lives, and little garbage.
    """
    # Else pydantic reads the metadata of every installed distribution, looking for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    import pydantic

    gc.disable()
    pydantic.BaseModel.model_config["defer_build"] = True
    try:
        yield
    finally:
        del pydantic.BaseModel.model_config["defer_build"]
        gc.freeze()
        gc.enable()


def without_its_init(name: str) -> None:
    """Have a package's __init__ executed when a name of it is first asked for, not when a module below it is imported.
    Nothing where the package is loaded already.
    """
    spec = importlib.util.find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    loader = spec.loader

    def execute(wanted: str) -> Any:
        # Import machinery asks for such names of every module, and is content with none.
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        module.__dict__.pop("__getattr__", None)
        loader.exec_module(module)
        return getattr(module, wanted)

    module.__dict__["__getattr__"] = execute
    sys.modules[name] = module
