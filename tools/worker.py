"""The only entry of heavy work: `python -m samebits.tools.worker FOLDER` carries out FOLDER/request.json.

Progress goes to events.jsonl, the outcome to result.json (written last, whole). The worker leads its own process group,
so that whoever started it can end it with everything below it. Exit code: 0 when result.json holds an outcome.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.job.first import check
from samebits.tools.job.heartbeat import beat
from samebits.tools.job.job import Job
from samebits.tools.job.stopping import Stopped, stop
from samebits.tools.job.tidy import tidy
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import REQUEST
from samebits.tools.schema.results import Cancelled, Failed, Succeeded
from samebits.tools.sides.session import SideDied
from samebits.tools.store.room import is_full

if TYPE_CHECKING:
    from samebits.tools.schema.requests import Request
    from samebits.tools.schema.results import Outcome, Result


def run(request: Request, job: Job) -> Result:
    """Dispatch one request to its verb. Imports are late: each verb loads only what it needs.

    Raises:
        UserError: what the user gave cannot be run.
    """
    check(request)
    if request.kind == "inspect":
        from samebits.tools.measure.inspect import run_inspect

        return run_inspect(request, job)
    if request.kind == "measure":
        from samebits.tools.measure.verb import run_measure

        return run_measure(request, job)
    if request.kind == "capture":
        from samebits.tools.capture.verb import run_capture

        return run_capture(request, job)
    if request.kind == "diff":
        from samebits.tools.diff.verb import run_diff

        return run_diff(request, job)
    if request.kind == "minimize":
        from samebits.tools.repro.verb import run_minimize

        return run_minimize(request, job)
    if request.kind == "build":
        from samebits.tools.gate.candidate.verb import run_build

        return run_build(request, job)
    if request.kind == "gate":
        from samebits.tools.gate.regression.verb import run_regression

        return run_regression(request, job)
    if request.kind == "propose":
        from samebits.tools.propose.verb import run_propose

        return run_propose(request, job)
    if request.kind == "apply":
        from samebits.tools.propose.apply import run_apply

        return run_apply(request, job)
    if request.kind == "rl":
        from samebits.tools.rl.verb import run_rl

        return run_rl(request, job)
    from samebits.tools.demo.verb import run_demo

    return run_demo(request, job)


def outcome_of(folder: Path) -> Outcome:
    """Carry out the request of a job folder; every way it can end becomes an Outcome."""
    job = Job(folder)
    try:
        request = REQUEST.validate_json((folder / "request.json").read_text(encoding="utf-8"))
        return Succeeded(result=run(request, job))
    except UserError as error:
        return Failed(error="user", message=str(error))
    except SideDied as error:
        return Failed(error="side_died", message=str(error))
    except (MemoryError, OSError) as error:
        traceback.print_exc()
        return Failed(error="resource", message=f"{type(error).__name__}: {error}")
    except Stopped:
        return Cancelled()
    except Exception as error:  # whatever it is, the job must say how it ended
        traceback.print_exc()
        if is_full(error):
            return Failed(error="resource", message=f"{type(error).__name__}: {error}. Next: make room on the disk")
        return Failed(
            error="internal", message=f"{type(error).__name__}: {error}. The traceback is in {folder / 'log.txt'}"
        )
    finally:
        job.drop_prepared()


def main() -> None:
    """Entry point."""
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    beat(folder)
    outcome = outcome_of(folder)
    for number in (signal.SIGTERM, signal.SIGINT):  # asked twice: the first time is enough, the end is near
        signal.signal(number, signal.SIG_IGN)
    if not isinstance(outcome, Succeeded):
        tidy(folder)
    part = folder / "result.json.part"
    part.write_text(outcome.model_dump_json(indent=1), encoding="utf-8")
    os.replace(part, folder / "result.json")


if __name__ == "__main__":
    main()
