"""Runs a repro before and after: as it stands, and with the candidate in the place of both sides. Each in a fresh
process with a time limit: repro.py and the candidate are other people's code.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from samebits.tools.schema.artifacts.proposal import ReproEvidence, ReproRun
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
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
    folder: Path, manifest: ReproManifest, candidate: Candidate, job: Job, *, required: bool = False
) -> ReproEvidence:
    """Both runs.

    Args:
        required: the candidate does not run without a sandbox.

    Raises:
        UserError: the repro no longer differs, or differs with the candidate too.
    """
    job.emit("repro", "before: the two sides' own code")
    before = run_before(folder)
    if before.status == "equal":
        raise UserError(str(folder), "its two sides are equal here: there is nothing to repair", "leave repro out")
    job.emit("repro", f"after: {candidate.name} in the place of both")
    after = run_after(folder, manifest, candidate, job, required=required)
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


def run_before(folder: Path) -> ReproRun:
    """repro.py as it stands."""
    code, output = run([sys.executable, "-B", "repro.py"], folder)
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
    code, output = run([sys.executable, "-m", "samebits.tools.propose.child", str(place)], place)
    try:
        found = ReproRun.model_validate_json((place / "answer.json").read_bytes())
    except (OSError, ValueError):
        return ReproRun(status="not_run", words=f"the candidate ended with exit code {code}: {last_line(output)}")
    return found


def run(command: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and output of a process and everything it started, ended at the time limit."""
    env = dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
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
