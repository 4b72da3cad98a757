"""Runs the gate for one candidate, or for one of the library's own operators: a fresh judge, and below it a fresh
process for the candidate, with a time limit per leg.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch

from samebits.kernels.adapters.setup import machine
from samebits.kernels.candidate import Candidate, describe, digest_of
from samebits.kernels.contract_version import CONTRACT_VERSION
from samebits.kernels.registry import OPERATORS, operator
from samebits.tools.gate.candidate.log import read as read_log
from samebits.tools.sandbox.processes import below, machine_memory_bytes
from samebits.tools.schema import asked
from samebits.tools.schema.artifacts.candidate_gate import (
    CandidateGate,
    Green,
    Incomplete,
    Leg,
    LegName,
    NotRun,
    Passed,
    Red,
    Sandbox,
    Stopped,
)
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

LEGS = get_args(LegName)
LIMIT_S = 180.0
"""Longest time of one leg."""
SLACK_S, START_S = 20.0, 300.0
"""The judge ends a leg itself; it is ended when it is so much later. Its start may try several sandboxes."""
SHORT = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


@dataclass(slots=True, frozen=True)
class Target:
    """What goes through the gate, and how."""

    operator: str
    candidate: Candidate | None
    device: Literal["cpu", "cuda"]
    interpreted: bool
    dtypes: tuple[str, ...]
    shapes: tuple[dict[str, int], ...]
    mandatory: tuple[str, ...]
    elsewhere: tuple[str, ...]
    """What the candidate claims and this machine cannot show."""


def target_of(what: str, device: str = "auto") -> Target:
    """Resolve the name of a library operator or the path of a candidate folder.

    Raises:
        UserError: neither; or a candidate.toml that cannot be used; or no such device here.
    """
    used = machine.device(cast("Literal['auto', 'cpu', 'cuda']", device))
    if used == "cuda" and machine.device() == "cpu":
        raise UserError("device cuda", "torch sees no CUDA device here", "use --device cpu or a GPU machine")
    if what in OPERATORS:
        return library_target(what, used)
    asked.check_named(what)
    try:
        candidate = describe(Path(what))
    except ValueError as error:
        raise UserError(what, str(error), "mend candidate.toml; docs/candidates.md shows one") from error
    if device == "auto" and candidate.devices == ("cpu",):
        used = "cpu"
    return candidate_target(candidate, used)


def library_target(name: str, device: Literal["cpu", "cuda"]) -> Target:
    """The library's own operator: on CUDA as it is installed, on CPU its Triton kernel under the interpreter (where it
    has `run`).
    """
    found = operator(name)
    interpreted = device == "cpu" and has_run(found.package)
    dtypes = tuple(SHORT[d] for d in found.inputs.DTYPES if not interpreted or d != torch.bfloat16)
    shapes = tuple(dict(s) for s in (found.inputs.SHAPES if device == "cuda" else found.inputs.SMALL_SHAPES))
    needed = needed_legs(name, device, backward=True, timed=False)
    return Target(name, None, device, interpreted, dtypes, shapes, needed, ("cuda",) if device == "cpu" else ())


def has_run(package: str) -> bool:
    """Does the operator's triton.py define `run`? Read from its text: importing it here would fix Triton's mode for
    this process.
    """
    path = Path(__file__).parents[3].joinpath(*package.split(".")[1:], "triton.py")
    return path.is_file() and "\ndef run(" in path.read_text(encoding="utf-8")


def candidate_target(candidate: Candidate, device: Literal["cpu", "cuda"]) -> Target:
    """A candidate. Interpreted Triton: float16 and float32 and small shapes stand in for those claimed."""
    interpreted = device == "cpu" and candidate.kind == "triton"
    if candidate.kind == "cuda" and device == "cpu":
        raise UserError(str(candidate.folder), "a CUDA source cannot be built or run here", "use a GPU machine")
    inputs = operator(candidate.operator).inputs
    dtypes = ("float16", "float32") if interpreted else candidate.dtypes
    default = inputs.SHAPES if device == "cuda" else inputs.SMALL_SHAPES
    shapes = candidate.shapes if candidate.shapes and not interpreted else tuple(dict(s) for s in default)
    needed = needed_legs(candidate.operator, device, backward=candidate.backward, timed=candidate.speed is not None)
    elsewhere = tuple(d for d in candidate.devices if d != device)
    return Target(candidate.operator, candidate, device, interpreted, dtypes, shapes, needed, elsewhere)


def needed_legs(name: str, device: str, *, backward: bool, timed: bool) -> tuple[str, ...]:
    """The legs without which nothing passes."""
    needed = {"builds", "contained", "accuracy", "bits", "repeat", "rows", "sweep", "compiled"}
    needed |= {"paths"} if hasattr(operator(name).inputs, "paths") else set()
    needed |= {"gradient"} if backward and operator(name).inputs.GRADS else set()
    needed |= {"graphs"} if device == "cuda" else set()
    needed |= {"time"} if timed else set()
    return tuple(leg for leg in LEGS if leg in needed)


def run_gate(
    target: Target,
    folder: Path,
    *,
    timed: bool = True,
    limit_s: float = LIMIT_S,
    memory_bytes: int = 0,
    sandbox: Literal["auto", "required"] = "auto",
    emit: Callable[[str, str], None] | None = None,
) -> tuple[CandidateGate, str]:
    """Run all legs: a judge in a child process, and below it the candidate in the sandbox.

    Args:
        folder: scratch folder of this run; made here.
        timed: run the time leg.
        memory_bytes: what the candidate and all it starts may hold; 0: three quarters of this machine's.
        sandbox: "required": nothing of the candidate runs without one.
        emit: told the name and outcome of each leg.

    Returns:
        The report (files not filled) and what the judge and the candidate printed.

    Raises:
        UserError: a sandbox is required and this machine gives none.
    """
    folder.mkdir(parents=True)
    legs = [leg for leg in LEGS if timed or leg != "time"]
    job = {
        "inside": str(copied(target.candidate, folder / "candidate")) if target.candidate else "",
        "operator": target.operator,
        "device": target.device,
        "interpreted": target.interpreted,
        "dtypes": target.dtypes,
        "shapes": target.shapes,
        "private": str(folder.resolve() / "private"),
        "log": str(folder / "candidate.txt"),
        "legs": legs,
        "limit_s": limit_s,
        "memory_bytes": memory_bytes or machine_memory_bytes() * 3 // 4,
        "required": sandbox == "required",
        "events": str(folder / "legs.jsonl"),
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    death = watch(folder, target.interpreted, limit_s + SLACK_S, emit or (lambda leg, text: None))
    found = sandbox_of(folder)
    shutil.rmtree(folder / "private", ignore_errors=True)
    if found is not None and sandbox == "required" and not found.whole:
        raise UserError(
            "sandbox = required", found.words, "install bubblewrap, or build on a machine that has a sandbox"
        )
    outcomes = read_outcomes(folder, death)
    log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace") + read_log(folder / "candidate.txt")
    return report(target, outcomes, timed).model_copy(update={"sandbox": found}), log[-20_000:]


def copied(candidate: Candidate, folder: Path) -> Path:
    """The two files of a candidate, as their digest was taken, in a folder of this run: what is judged is what runs.

    Raises:
        UserError: they changed meanwhile.
    """
    folder = folder.resolve()
    folder.mkdir()
    shutil.copyfile(candidate.folder / "candidate.toml", folder / "candidate.toml")
    shutil.copyfile(candidate.source, folder / candidate.source.name)
    if digest_of(folder, folder / candidate.source.name) != candidate.digest:
        raise UserError(str(candidate.folder), "changed while it was read", "build it again")
    return folder


def sandbox_of(folder: Path) -> Sandbox | None:
    """What held the candidate; None: its process never came up."""
    found = [event["sandbox"] for event in read_events(folder) if event.get("event") == "sandbox"]
    return Sandbox.model_validate(found[0]) if found else None


def watch(folder: Path, interpreted: bool, limit_s: float, emit: Callable[[str, str], None]) -> str | None:
    """Run the judge to its end. Returns how it died, or None."""
    env = {
        **os.environ,
        "TRITON_INTERPRET": "1" if interpreted else "0",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # its pool of processes would count as the candidate's
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with (folder / "log.txt").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "samebits.tools.gate.candidate.child", str(folder / "job.json")],
            stdout=log,
            stderr=log,
            env=env,
            start_new_session=True,
        )
        told, since = 0, time.monotonic()
        try:
            while child.poll() is None:
                time.sleep(0.05)
                events = read_events(folder)
                if len(events) > told:
                    for event in events[told:]:
                        if event.get("event") == "end":
                            emit(event["leg"], event["outcome"]["status"])
                    told, since = len(events), time.monotonic()
                elif time.monotonic() - since > limit_s + (0 if told else START_S):
                    return f"no answer within {limit_s:.0f} s: it hangs, or is far too slow; ended"
        finally:
            end(child)
    if any(event.get("event") == "done" for event in read_events(folder)):
        return None
    code = child.returncode
    how = f"died: {signal.Signals(-code).name}" if code < 0 else f"ended early with exit code {code}"
    return f"the process that judges it {how}"


def end(child: subprocess.Popen[bytes]) -> None:
    """End the judge and everything below it."""
    family = below(child.pid)
    for pid in (child.pid, *family):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    child.wait()


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of legs.jsonl."""
    path = folder / "legs.jsonl"
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def read_outcomes(folder: Path, death: str | None) -> dict[str, tuple[Green | Red | NotRun, float]]:
    """Outcome and seconds by leg; a death is red for the leg that had begun."""
    found: dict[str, tuple[Green | Red | NotRun, float]] = {}
    begun = LEGS[0]
    kinds: dict[str, type[Green] | type[Red] | type[NotRun]] = {"green": Green, "red": Red, "not_run": NotRun}
    for event in read_events(folder):
        if event.get("event") == "start":
            begun = event["leg"]
        elif event.get("event") == "end":
            raw = event["outcome"]
            found[event["leg"]] = (kinds[raw["status"]].model_validate(raw), event["seconds"])
    if death is not None:
        tail = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")[-2000:].strip()
        last = tail.splitlines()[-1] if tail else "nothing printed"
        found[begun] = (Red(what=f"{death}. Last line of its log: {last[:300]}"), 0.0)
    return found


def report(target: Target, outcomes: dict[str, tuple[Green | Red | NotRun, float]], timed: bool) -> CandidateGate:
    """All legs, run or not, and the verdict."""
    legs = []
    red = next((leg for leg in LEGS if leg in outcomes and outcomes[leg][0].status == "red"), None)
    for name in LEGS:
        reason = (
            f"stopped at the red leg {red}"
            if red
            else "switched off"
            if name == "time" and not timed
            else "the run ended before it"
        )
        outcome, seconds = outcomes.get(name, (NotRun(reason=reason), 0.0))
        legs.append(Leg(name=name, mandatory=name in target.mandatory, seconds=seconds, outcome=outcome))
    missing: list[str] = [leg.name for leg in legs if leg.mandatory and leg.outcome.status != "green"]
    missing += [f"all on {device}" for device in target.elsewhere]
    verdict = Stopped(leg=red) if red else Incomplete(missing=tuple(missing)) if missing else Passed()
    candidate = target.candidate
    return CandidateGate(
        candidate=candidate.name if candidate else f"samebits {target.operator}",
        operator=target.operator,
        digest=candidate.digest if candidate else "library",
        contract_version=CONTRACT_VERSION,
        device=target.device,
        interpreted=target.interpreted,
        dtypes=target.dtypes,
        shapes=target.shapes,
        legs=tuple(legs),
        verdict=verdict,
    )
