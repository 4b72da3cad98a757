"""The judge of a gate run: `python -m samebits.tools.gate.candidate.child JOB.json`.

It draws the inputs, computes what is due, compares, and runs the legs in order until the first red one, appending one
line per event to legs.jsonl. The candidate's code is never loaded here: it lives in a process of its own, in the
sandbox, behind a Link. This process is one apart from the job's too, so that an operator of the library may bring its
own mode (Triton's interpreter) and a leg that takes too long can be ended.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from samebits.kernels import candidate as candidates
from samebits.kernels.registry import operator
from samebits.tools.gate.candidate.legs import builds, contained, contract_bits, paths_leg, repeat, rows_leg, sweep_leg
from samebits.tools.gate.candidate.legs_graph import compiled, graphs, timing
from samebits.tools.gate.candidate.legs_numeric import accuracy, gradient
from samebits.tools.gate.candidate.link import Limits, start
from samebits.tools.gate.candidate.plan import DTYPES, CannotRunError, Plan, RedError
from samebits.tools.sandbox.enter import die_with_parent
from samebits.tools.sandbox.view import view_of

if TYPE_CHECKING:
    from samebits.tools.gate.candidate.link import Link

PR_SET_CHILD_SUBREAPER = 36
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


def link_of(job: dict[str, Any]) -> Link:
    """The process with the candidate, started."""
    private = Path(job["private"])
    (private / "build").mkdir(parents=True)
    also = (Path(job["inside"]),) if job["inside"] else ()
    view = view_of(private, also, cuda=job["device"] == "cuda")
    return start(job, view, Limits(job["memory_bytes"]), Path(job["log"]), {})


def plan_of(job: dict[str, Any], link: Link) -> Plan:
    """The plan of a job file."""
    return Plan(
        operator(job["operator"]),
        candidates.describe(Path(job["inside"])) if job["inside"] else None,
        torch.device(job["device"]),
        job["interpreted"],
        tuple(DTYPES[d] for d in job["dtypes"]),
        tuple(job["shapes"]),
        link,
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


def sandbox_of(link: Link) -> dict[str, Any]:
    """What holds the candidate, as the report says it."""
    held, box = link.box.held, link.box
    found = {"kind": box.kind, "network": held.network, "files": held.files, "processes": held.processes}
    return found | {"memory_mib": link.limits.memory_bytes >> 20, "why": box.why}


def main() -> None:
    """Entry point. The last line says that the judge itself came to its end."""
    die_with_parent()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with Path(job["events"]).open("a", encoding="utf-8", buffering=1) as events:

        def tell(**event: Any) -> None:
            events.write(json.dumps(event) + "\n")

        link = link_of(job)
        try:
            tell(event="sandbox", sandbox=sandbox_of(link))
            if job["required"] and not link.box.held.whole:
                return
            plan = plan_of(job, link)
            for name in job["legs"]:
                link.limit_s, link.deadline = job["limit_s"], time.monotonic() + job["limit_s"]
                tell(leg=name, event="start")
                start_s = time.monotonic()
                outcome = outcome_of(name, plan)
                tell(leg=name, event="end", seconds=time.monotonic() - start_s, outcome=outcome)
                if outcome["status"] == "red":
                    break
            tell(event="done")
        finally:
            link.stop()


if __name__ == "__main__":
    main()
