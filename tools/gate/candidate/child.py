"""The child process of a gate run: `python -m samebits.tools.gate.candidate.child JOB.json`.

Runs the legs in order, stops at the first red one, and appends one line per event to legs.jsonl. It holds the
candidate's code, so its parent
trusts nothing but those lines, kills it when a leg takes too long, and reads a death as a red leg.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from samebits.kernels import candidate as candidates
from samebits.kernels.registry import operator
from samebits.tools.gate.candidate.legs import builds, contained, contract_bits, paths_leg, repeat, rows_leg, sweep_leg
from samebits.tools.gate.candidate.legs_graph import compiled, graphs, timing
from samebits.tools.gate.candidate.legs_numeric import accuracy, gradient
from samebits.tools.gate.candidate.plan import DTYPES, CannotRunError, Plan, RedError

PR_SET_PDEATHSIG = 1
LEGS = {
    "builds": builds,
    "contained": contained,
    "accuracy": accuracy,
    "bits": contract_bits,
    "repeat": repeat,
    "rows": rows_leg,
    "sweep": sweep_leg,
    "paths": paths_leg,
    "gradient": gradient,
    "compiled": compiled,
    "graphs": graphs,
    "time": timing,
}


def plan_of(job: dict[str, Any]) -> Plan:
    """The plan of a job file."""
    candidate = candidates.describe(Path(job["folder"])) if job["folder"] else None
    return Plan(
        operator(job["operator"]),
        candidate,
        torch.device(job["device"]),
        job["interpreted"],
        tuple(DTYPES[d] for d in job["dtypes"]),
        tuple(job["shapes"]),
        Path(job["build_folder"]),
    )


def outcome_of(name: str, plan: Plan) -> dict[str, Any]:
    """Run one leg."""
    try:
        with torch.no_grad() if name not in ("gradient",) else torch.enable_grad():
            evidence = LEGS[name](plan)
    except RedError as red:
        first = red.first
        detail = (
            None
            if first is None
            else {
                "call": red.call,
                "output": first.output,
                "index": first.index,
                "got": first.got,
                "expected": first.expected,
                "differing": first.differing,
                "total": first.total,
            }
        )
        return {"status": "red", "what": red.what, "first": detail}
    except CannotRunError as reason:
        return {"status": "not_run", "reason": str(reason)}
    return {"status": "green", "evidence": evidence.text, "checked": evidence.checked, "numbers": evidence.numbers}


def die_with_parent() -> None:
    """End this process when its parent is gone: a candidate that hangs must not outlive its job."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Entry point. The last line says that the child itself came to its end."""
    die_with_parent()
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with Path(job["events"]).open("a", encoding="utf-8", buffering=1) as events:

        def tell(**event: Any) -> None:
            events.write(json.dumps(event) + "\n")

        plan = plan_of(job)
        for name in job["legs"]:
            tell(leg=name, event="start")
            start = time.monotonic()
            outcome = outcome_of(name, plan)
            tell(leg=name, event="end", seconds=time.monotonic() - start, outcome=outcome)
            if outcome["status"] == "red":
                break
        tell(event="done")


if __name__ == "__main__":
    main()
