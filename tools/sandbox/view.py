"""What code in the sandbox may see: the interpreter, its packages, the system's libraries, one folder of its own."""

from __future__ import annotations

import importlib
import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "nvidia", "OpenCL")
"""Of /etc: what the loader, compilers and the GPU driver read. No users, no names of machines."""
DEVICES = ("null", "zero", "full", "random", "urandom")
PACKAGES = ("site-packages", "dist-packages")
KEPT = re.compile(
    r"PATH|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|LANG|LC_ALL|LC_CTYPE|TZ|CC|CXX|CUDAHOSTCXX|MAX_JOBS"
    r"|(CUDA|NVIDIA|TORCH|TORCHINDUCTOR|TRITON|OMP|MKL|OPENBLAS|ATEN|ONEDNN|KMP|PYTORCH|CUBLAS|NCCL)_\w+|PYTHON\w+"
)
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|_KEY", re.IGNORECASE)


@dataclass(slots=True, frozen=True)
class View:
    """Paths the code may read, the one folder it may write to, and the devices it may open."""

    private: Path
    """Must exist; all caches and temporary files go there."""
    read: tuple[Path, ...]
    devices: tuple[Path, ...]
    cuda: bool

    def environment(self) -> dict[str, str]:
        """The whole environment of the process: what chooses numbers and finds libraries, and private places."""
        kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name) and not SECRET.search(name)}
        places = {
            "HOME": "home",
            "TMPDIR": "tmp",
            "TRITON_CACHE_DIR": "triton",
            "TORCHINDUCTOR_CACHE_DIR": "inductor",
            "TORCH_EXTENSIONS_DIR": "extensions",
            "CUDA_CACHE_PATH": "cuda",
            "XDG_CACHE_HOME": "cache",
        }
        for name in places.values():
            (self.private / name).mkdir(exist_ok=True)
        return kept | {name: str(self.private / place) for name, place in places.items()} | {"USER": "samebits"}


def view_of(private: Path, also: tuple[Path, ...] = (), *, cuda: bool = False) -> View:
    """The view of a fresh process of this interpreter.

    Args:
        private: its own folder.
        also: further paths to read.
        cuda: with the GPU's device nodes.
    """
    found = [Path(name) for name in SYSTEM] + [Path("/etc", name) for name in SETTINGS]
    found += [Path(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values())]
    found += [Path(p) for p in sys.path if Path(p).name in PACKAGES or Path(p, "samebits").is_dir()]
    found += [Path(p) for name in ("kernels", "tools") for p in package_paths(name)]
    found += [Path(p) for p in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")) if p]
    found += [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p.startswith("/")]
    found = [path for path in found if not Path.home().is_relative_to(path.resolve())] + list(also)
    links = [path.resolve() for path in found if path.is_symlink() and path.parent != Path("/")]
    there = dict.fromkeys(path.absolute() for path in (*found, *links) if path.exists())
    devices = [Path("/dev", name) for name in DEVICES]
    if cuda:
        devices += [p for p in sorted(Path("/dev").glob("nvidia*")) if not p.is_dir()]
        devices += sorted(Path("/dev/nvidia-caps").glob("*"))
    return View(private.resolve(), tuple(there), tuple(devices), cuda)


def package_paths(name: str) -> list[str]:
    """Folders of one of samebits' own packages, wherever it is installed."""
    paths = importlib.import_module(f"samebits.{name}").__path__
    return [path for path in paths if Path(path).is_dir()]
