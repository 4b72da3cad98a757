"""Builds sdist and wheel into dist/, installs the wheel in a fresh environment and asks it for its help.

The wheel is built from the sdist, so the sdist is known to hold all that a build needs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.stdout.write(done.stdout)
        sys.exit(f"dist: this failed with code {done.returncode}: {' '.join(command)}")
    return done.stdout


def main() -> None:
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    print("[1/3] sdist, and the wheel from it", flush=True)
    run(sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT))
    wheel = next(dist.glob("*.whl"))
    with tempfile.TemporaryDirectory() as scratch:
        python = Path(scratch, "venv", "bin", "python")
        print(f"[2/3] {wheel.name} into a fresh environment", flush=True)
        run(sys.executable, "-m", "venv", str(python.parent.parent))
        run(str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", str(wheel))
        print("[3/3] samebits --help", flush=True)
        text = run(str(python.with_name("samebits")), "--help", cwd=Path(scratch))
    if "samebits" not in text:
        sys.exit("dist: samebits --help answered without its name")
    print("\n".join(f"dist/{path.name}  {path.stat().st_size:,} bytes" for path in sorted(dist.iterdir())))


if __name__ == "__main__":
    main()
