"""`python -m samebits.tools.propose.child FOLDER`: the candidate on a repro's inputs, each row in company and alone.

Two sides that run the same kernel differ only if the company of a row, or the run, moves its bits. So the candidate is
called with all rows together among copies of other rows (as an engine's batch), again, in another order, and with each
row alone (as a trainer's shortest call); all must agree to the bit. The candidate itself lives in a process of its own,
in the sandbox of the gate; inputs and comparison stay here.

Legend: T token rows of the repro, R rows of a call.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from samebits.kernels import candidate as candidates
from samebits.tools.diff.bits import bit_view
from samebits.tools.gate.candidate.child import PR_SET_CHILD_SUBREAPER, link_of, sandbox_of
from samebits.tools.gate.candidate.plan import RedError
from samebits.tools.gate.candidate.runner import copied
from samebits.tools.sandbox.enter import die_with_parent
from samebits.tools.sandbox.processes import machine_memory_bytes
from samebits.tools.schema.artifacts.candidate_gate import Sandbox
from samebits.tools.schema.artifacts.proposal import ReproRun
from samebits.tools.store.artifact import load_tensors

COMPANY = 7
"""Rows put beside each call's own."""
Tensors = Mapping[str, torch.Tensor]
Args = dict[str, Any]


def scalars_of(folder: Path) -> dict[str, Any]:
    """SCALARS of repro.py, read as a literal: nothing of it is run."""
    import ast

    tree = ast.parse((folder / "repro.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["SCALARS"]:
            return dict(ast.literal_eval(node.value))
    return {}


def norm(x: Tensors, scalars: Mapping[str, Any]) -> tuple[Args, tuple[str, ...]]:
    return {
        "x": x["x"], "weight": x.get("weight"), "eps": float(scalars.get("eps", 1e-6)), "residual": x.get("residual")
    }, ("x", "residual")  # fmt: skip


def linear(x: Tensors, scalars: Mapping[str, Any]) -> tuple[Args, tuple[str, ...]]:
    if scalars.get("weight") == "merged":
        raise ValueError("a merged weight is not one linear of the operator")
    return {"x": x["x"], "weight": x["weight"], "bias": x.get("bias")}, ("x",)


def activation(x: Tensors, scalars: Mapping[str, Any]) -> tuple[Args, tuple[str, ...]]:
    if scalars.get("name", "silu") != "silu" or "up" not in x:
        raise ValueError("not silu(gate) * up")
    return {"gate": x["gate"], "up": x["up"]}, ("gate", "up")


def embedding(x: Tensors, scalars: Mapping[str, Any]) -> tuple[Args, tuple[str, ...]]:
    if float(scalars.get("scale", 1.0)) != 1.0:
        raise ValueError("a scaled embedding is not the operator")
    return {"ids": x["ids"], "table": x["weight"]}, ("ids",)


def logprob(x: Tensors, scalars: Mapping[str, Any]) -> tuple[Args, tuple[str, ...]]:
    temperature = torch.full((len(x["token"]),), float(scalars.get("temperature", 1.0)))
    return {"logits": x["logits"], "targets": x["token"], "temperature": temperature}, (
        "logits",
        "targets",
        "temperature",
    )


CALLS: dict[tuple[str, str], Callable[[Tensors, Mapping[str, Any]], tuple[Args, tuple[str, ...]]]] = {
    ("norm", "rms_norm"): norm,
    ("linear", "linear"): linear,
    ("activation", "silu_mul"): activation,
    ("embedding", "embedding"): embedding,
    ("logprob", "logprob"): logprob,
}
"""(kind of the repro, operator of the candidate) -> the operator's arguments, and which have a row per token."""


def outputs(run: Callable[..., Any], args: Args) -> list[torch.Tensor]:
    """One call's outputs."""
    made = run(**args)
    return [made] if isinstance(made, torch.Tensor) else list(made)


def picked(args: Args, rows: tuple[str, ...], index: torch.Tensor) -> Args:
    """The arguments with these rows."""
    return {
        name: value[index].contiguous() if name in rows and value is not None else value for name, value in args.items()
    }


def compare(run: Callable[..., Any], args: Args, rows: tuple[str, ...]) -> ReproRun:
    """Every row in company, again, and alone."""
    count = len(args[rows[0]])
    company = torch.cat([torch.arange(count), torch.arange(COMPANY) % count])
    together = outputs(run, picked(args, rows, company))
    again = outputs(run, picked(args, rows, company))
    reversed_rows = outputs(run, picked(args, rows, company.flip(0)))
    alone = [outputs(run, picked(args, rows, torch.tensor([row]))) for row in range(count)]
    differing = total = 0
    for number, whole in enumerate(together):
        parts = torch.cat([one[number] for one in alone])
        for other in (again[number][:count], reversed_rows[number].flip(0)[:count], parts):
            apart = bit_view(whole[:count].contiguous()) != bit_view(other.contiguous())
            differing, total = differing + int(apart.sum()), total + apart.numel()
    words = (
        f"{differing} of {total} elements differ: the candidate as both sides, {count} rows in company, again, in "
        "another order, and each alone"
    )
    return ReproRun(status="differs" if differing else "equal", words=words, differing=differing, total=total)


def answer(order: dict[str, Any], place: Path) -> ReproRun:
    """What became of it.

    Args:
        order: candidate and repro (folders), kind (of the repro), required (no run without a sandbox), limit_s.
        place: scratch folder.
    """
    candidate, repro = candidates.describe(Path(order["candidate"])), Path(order["repro"])
    make = CALLS.get((order["kind"], candidate.operator))
    if make is None:
        words = f"a repro of kind {order['kind']} cannot be put to operator {candidate.operator}"
        return ReproRun(status="not_run", words=words)
    device = "cuda" if torch.cuda.is_available() and "cuda" in candidate.devices else "cpu"
    stored = load_tensors(repro, "inputs.safetensors")
    inputs = {name[3:]: tensor.to(device) for name, tensor in stored.items() if name.startswith("in.")}
    try:
        args, rows = make(inputs, scalars_of(repro))
    except (ValueError, KeyError) as error:
        return ReproRun(status="not_run", words=f"its inputs are not the operator's: {error}")
    return in_sandbox(candidate, device, order, place, {name: _on(value, device) for name, value in args.items()}, rows)


def in_sandbox(
    candidate: candidates.Candidate, device: str, order: dict[str, Any], place: Path, args: Args, rows: tuple[str, ...]
) -> ReproRun:
    """The comparison, the candidate behind a link."""
    job = {
        "inside": str(copied(candidate, place / "candidate")),
        "operator": candidate.operator,
        "device": device,
        "interpreted": False,
        "private": str(place.resolve() / "private"),
        "log": str(place / "candidate.txt"),
        "memory_bytes": machine_memory_bytes() * 3 // 4,
    }
    link = link_of(job)
    try:
        if order["required"] and not link.box.held.whole:
            return ReproRun(status="not_run", words="this machine gives no sandbox, and the gate ran it in one")
        link.limit_s, link.deadline = order["limit_s"], time.monotonic() + order["limit_s"]
        link.ask("load", "the candidate")
        held = Sandbox.model_validate(sandbox_of(link))
        with torch.no_grad():
            found = compare(lambda **given: link.call(given, "the candidate on it"), args, rows)
    except RedError as error:
        return ReproRun(status="not_run", words=f"the candidate cannot run on it: {error.what}"[:500])
    else:
        return found.model_copy(update={"sandbox": held})
    finally:
        link.stop()


def _on(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def main() -> None:
    """Entry point."""
    die_with_parent()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    place = Path(sys.argv[1])
    found = answer(json.loads((place / "order.json").read_text(encoding="utf-8")), place)
    part = place / "answer.json.part"
    part.write_text(found.model_dump_json(), encoding="utf-8")
    part.replace(place / "answer.json")


if __name__ == "__main__":
    main()
