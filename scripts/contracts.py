"""Runs import-linter over the link folder; the contracts are in pyproject.toml.

The finder of an editable install is taken off first: with it each package has a second place, which the linter takes
for packages of other names.
"""

from __future__ import annotations

import sys
from pathlib import Path

EDITABLE = "__editable__"


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    sys.meta_path[:] = [finder for finder in sys.meta_path if EDITABLE not in getattr(finder, "__module__", "")]
    sys.path[:] = [str(root / ".links"), *(entry for entry in sys.path if EDITABLE not in entry)]
    from importlinter.cli import lint_imports

    return lint_imports(config_filename=str(root / "pyproject.toml"), cache_dir=None)


if __name__ == "__main__":
    sys.exit(main())
