"""Makes `.links/samebits/{server,tools,kernels,skill}`, links to the four folders.

Type checkers and the import linter read these: neither follows the mapping of an editable install.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("server", "tools", "kernels", "skill")


def make_links(root: Path) -> Path:
    """The folder to put on a tool's path."""
    package = root / ".links" / "samebits"
    package.mkdir(parents=True, exist_ok=True)
    for folder in FOLDERS:
        link = package / folder
        with suppress(FileExistsError):  # perhaps by another process, a moment ago
            link.symlink_to(Path("..", "..", folder), target_is_directory=True)
    return package.parent


if __name__ == "__main__":
    make_links(ROOT)
