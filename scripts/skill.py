"""`samebits skill install` for a checkout where nothing is installed: any Python 3.11 will do.

python3 /path/to/checkout/scripts/skill.py --claude
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(runpy.run_path(str(ROOT / "scripts" / "links.py"))["make_links"](ROOT)))

from samebits.server.cli import skill_folder  # noqa: E402  (found on the path made above)
from samebits.tools.schema.errors import UserError  # noqa: E402


def main() -> int:
    """Install, print where; 2 and one sentence when it cannot."""
    parser = argparse.ArgumentParser(description="Put the agent skill where a client looks for it.")
    for name, folder in skill_folder.PLACES.items():
        parser.add_argument(f"--{name}", action="append_const", dest="clients", const=name, help=folder)
    parser.add_argument("--user", action="store_true", help="in the home folder instead of the current one")
    parser.add_argument("--dest", type=Path, help="any other folder of skills")
    asked = parser.parse_args()
    try:
        targets = skill_folder.install(asked.clients or [], user=asked.user, dest=asked.dest)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(*targets, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
