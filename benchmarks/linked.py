"""Runs a command where `samebits` is importable from this checkout, without an installation.

    python benchmarks/linked.py samebits rl --config docs/examples/rl-1.7b.toml --gpu
    python benchmarks/linked.py benchmarks/operators.py --out FILE
    python benchmarks/linked.py pytest -m gpu

`samebits`, `pytest` and scripts run with this interpreter; anything else is looked up in PATH.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

from common import linked

MODULES = {"samebits": "samebits.server.cli.entry", "pytest": "pytest"}


def command_of(asked: list[str]) -> list[str]:
    """The command to become."""
    first, *rest = asked
    if first in MODULES:
        return [sys.executable, "-m", MODULES[first], *rest]
    return [sys.executable, *asked] if first.endswith(".py") else asked


def main() -> None:
    """Become the command."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    # Not below the checkout: what walks over its files would meet them twice.
    folder = Path(tempfile.gettempdir()) / f"samebits-links-{os.getuid()}"
    # A shell starts its background jobs deaf to Ctrl-C; what is started here must hear it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    command = command_of(sys.argv[1:])
    os.execvpe(command[0], command, linked(folder))


if __name__ == "__main__":
    main()
