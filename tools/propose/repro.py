"""Runs a repro before and after: as it stands, and with the candidate in the place of both sides. Each in a fresh
process with a time limit, in the sandbox: repro.py and the candidate are other people's code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from samebits.tools.gate.candidate.link import SLACK_BYTES
from samebits.tools.sandbox.box import Box, choose
from samebits.tools.sandbox.processes import machine_memory_bytes
from samebits.tools.sandbox.view import view_of
from samebits.tools.schema.artifacts.candidate_gate import Sandbox
from samebits.tools.schema.artifacts.proposal import ReproEvidence, ReproRun
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from samebits.kernels.candidate import Candidate
    from samebits.tools.job.job import Job
    from samebits.tools.schema.artifacts.repro import ReproManifest

LIMIT_S = 300
CALLS_S = 120.0
"""For all calls of the candidate, once it has started."""
COUNT = re.compile(r"^(\d+) of (\d+) elements differ$", re.MULTILINE)
LINE_CHARS = 300


def evidence(
    folder: Path,
    manifest: ReproManifest,
    candidate: Candidate,
    job: Job,
    *,
    required: bool = False,
    boxed: bool = False,
) -> ReproEvidence:
    """Both runs.

    Args:
        required: nothing runs without a sandbox.
        boxed: the candidate does not.

    Raises:
        UserError: the repro no longer differs, or differs with the candidate too; a sandbox is required and not here.
    """
    job.emit("repro", "before: the two sides' own code")
    before = run_before(folder, job, required=required)
    if before.status == "equal":
        raise UserError(str(folder), "its two sides are equal here: there is nothing to repair", "leave repro out")
    job.emit("repro", f"after: {candidate.name} in the place of both")
    after = run_after(folder, manifest, candidate, job, required=required or boxed)
    if after.status == "differs":
        raise UserError(
            str(candidate.folder), f"does not repair the repro: {after.words}", "mend the candidate and build it again"
        )
    return ReproEvidence(
        operator_kind=manifest.operator_kind,
        rollout=manifest.rollout,
        trainer=manifest.trainer,
        shrunk=manifest.shrunk,
        before=before,
        after=after,
    )


def run_before(folder: Path, job: Job, *, required: bool = False) -> ReproRun:
    """repro.py as it stands.

    Raises:
        UserError: a sandbox is required and this machine gives none.
    """
    place = job.new("repro-before")
    place.mkdir(parents=True)
    try:
        box = box_for(folder, place)
        held = sandbox_of(box)
        if required and not held.whole:
            raise UserError(
                "sandbox = required", f"repro.py is code, and {held.words}", "install bubblewrap, or leave repro out"
            )
        env = box.view.environment()
        code, output = run(box.python("-B", str(folder.resolve() / "repro.py")), place, env)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return read(code, output).model_copy(update={"sandbox": held})


def box_for(folder: Path, place: Path) -> Box:
    """The strongest sandbox here, with the repro to read and `place` to write to."""
    cuda = torch.cuda.is_available()
    memory = machine_memory_bytes() * 3 // 4
    box = choose(view_of(place, (folder.resolve(),), cuda=cuda))
    return replace(box, file_bytes=memory, data_bytes=0 if cuda else memory + SLACK_BYTES)


def sandbox_of(box: Box) -> Sandbox:
    """What holds repro.py, as the proposal says it."""
    held, memory = box.held, max(0, box.data_bytes - SLACK_BYTES)
    return Sandbox(
        kind=box.kind, network=held.network, files=held.files, processes=held.processes,
        memory_mib=memory >> 20, why=box.why,
    )  # fmt: skip


def read(code: int, output: str) -> ReproRun:
    """What repro.py said."""
    found = COUNT.search(output)
    last = last_line(output)
    if code == 0:
        return ReproRun(status="equal", words=last, total=int(found[2]) if found else 0)
    if code == 1 and found and int(found[1]):
        words = f"{found[1]} of {found[2]} elements differ between the two sides' own code"
        return ReproRun(status="differs", words=words, differing=int(found[1]), total=int(found[2]))
    return ReproRun(status="not_run", words=f"could not be run here: {last}")


def run_after(
    folder: Path, manifest: ReproManifest, candidate: Candidate, job: Job, *, required: bool = False
) -> ReproRun:
    """The candidate on the repro's inputs, together and apart (see child.py)."""
    place = job.new("repro-after")
    place.mkdir(parents=True)
    order = {
        "candidate": str(candidate.folder),
        "repro": str(folder),
        "kind": manifest.operator_kind,
        "required": required,
        "limit_s": CALLS_S,
    }
    (place / "order.json").write_text(json.dumps(order), encoding="utf-8")
    code, output = run([sys.executable, "-m", "samebits.tools.propose.child", str(place)], place, os.environ)
    try:
        found = ReproRun.model_validate_json((place / "answer.json").read_bytes())
    except (OSError, ValueError):
        return ReproRun(status="not_run", words=f"the candidate ended with exit code {code}: {last_line(output)}")
    return found


def run(command: list[str], folder: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and output of a process and everything it started, ended at the time limit."""
    process = subprocess.Popen(
        command, cwd=folder, env=dict(env) | {"PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
        return process.returncode, output.decode(errors="replace")
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {LIMIT_S} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def last_line(output: str) -> str:
    """The last thing that was printed, cut to length."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:LINE_CHARS] if lines else "no output"
