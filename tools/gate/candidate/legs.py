"""The legs about one device and plain calls: containment, bits, repetition, row groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from samebits.kernels import candidate as candidates
from samebits.tools.gate.candidate.compare import Unequal, bits, element, first_difference, form_difference
from samebits.tools.gate.candidate.guard import Guard, GuardedAllocations, unwritten
from samebits.tools.gate.candidate.plan import CannotRunError, Evidence, Outputs, Plan, RedError

if TYPE_CHECKING:
    from samebits.kernels.ops.rows import RowGroup

REPEATS = 100


def builds(plan: Plan) -> Evidence:
    """The source loads, and one call gives outputs of the operator's form."""
    if plan.candidate is None:
        plan.run = (
            plan.operator.op
            if plan.device.type == "cuda" or not plan.interpreted
            else plan.operator.module("triton").run
        )
    else:
        try:
            loaded = candidates.load(plan.candidate, plan.build_folder)
        except (Exception, SystemExit) as error:
            raise RedError(f"does not build: {type(error).__name__}: {str(error)[:1500]}") from error
        plan.run, plan.backward = loaded.run, loaded.backward
    name, case = next(plan.cases())
    problem = form_difference(plan.call(case.args, name), plan.expected(case.args))
    if problem:
        raise RedError(f"{name}: {problem}")
    return Evidence("loaded; the first call gives outputs of the operator's form", 1)


def contained(plan: Plan) -> Evidence:
    """Between guard bands: no write outside its outputs, no changed input, no element left unwritten, no output that is
    an input.
    """
    checked = 0
    for name, case in plan.cases():
        guard = Guard()
        args = {k: guard.copy(v, f"input {k}") if isinstance(v, torch.Tensor) else v for k, v in case.args.items()}
        with GuardedAllocations(guard):
            got = plan.call(args, name)
        if broken := guard.broken():
            raise RedError(f"{name}: writes outside its output: {broken}")
        for key, value in args.items():
            if isinstance(value, torch.Tensor):
                if first := first_difference((value,), (case.args[key],)):
                    raise RedError(f"{name}: changes its input {key}", name, first)
                if any(
                    out.untyped_storage().data_ptr() == value.untyped_storage().data_ptr() and out.numel()
                    for out in got
                ):
                    raise RedError(f"{name}: an output is a view of the input {key}; outputs must be new memory")
        for i, out in enumerate(got):
            if left := unwritten(out):
                raise RedError(f"{name}: {left} elements of output {i} were never written")
        checked += 1
    return Evidence(
        "inputs and own allocations stood between guard bands: all whole, inputs unchanged, every output written",
        checked,
    )


def contract_bits(plan: Plan) -> Evidence:
    """Every boundary and adversarial case has the bits of the contract."""
    if plan.is_its_contract:
        raise CannotRunError("on CPU the library's operator is its contract: the comparison could not fail")
    checked = elements = 0
    for name, case in plan.cases():
        got, expected = plan.call(case.args, name), plan.expected(case.args)
        same_bits(got, expected, name, "not the bits of the contract")
        checked += 1
        elements += sum(out.numel() for out in expected)
    return Evidence(f"0 of {elements} elements differ", checked, {"elements": float(elements)})


def same_bits(got: Outputs, expected: Outputs, name: str, what: str) -> None:
    """Raise RedError unless form and bits are equal."""
    problem = form_difference(got, expected)
    if problem:
        raise RedError(f"{name}: {problem}")
    if first := first_difference(got, expected):
        raise RedError(f"{name}: {what}", name, first)


def repeat(plan: Plan) -> Evidence:
    """The same call again and again."""
    checked = 0
    for shape, dtype, text in plan.smaller_settings():
        args = plan.draw(shape, 5, dtype, 31)
        first = tuple(out.clone() for out in plan.call(args, text))
        for i in range(1, REPEATS):
            same_bits(plan.call(args, text), first, text, f"call {i + 1} differs from call 1 with the same inputs")
            checked += 1
    return Evidence(f"{REPEATS} equal calls for each dtype and shape", checked)


def groups_leg(plan: Plan, name: str) -> Evidence:
    """Calls in which the same rows must have the same bits."""
    checked = 0
    labels = []
    for text, group in plan.groups(name):
        checked += check_group(plan, group, text)
        labels.append(group.name)
    if not labels:
        raise CannotRunError(f"{plan.operator.name} has one path: its rows are independent")
    return Evidence(f"{checked} rows compared; {'; '.join(dict.fromkeys(labels))}", checked)


def check_group(plan: Plan, group: RowGroup, text: str) -> int:
    """Compare every shared row with its first appearance; returns the number of rows compared."""
    known: list[torch.Tensor] = []
    seen = torch.zeros(0, dtype=torch.bool, device=plan.device)
    first_label: dict[int, str] = {}
    compared = 0
    for call in group.calls:
        got = plan.call(call.args, f"{text}, {call.label}")
        shared = torch.tensor([i for i, place in enumerate(call.rows) if place is not None], device=plan.device)
        places = torch.tensor([place for place in call.rows if place is not None], device=plan.device)
        rows = [out.index_select(0, places) for out in got]
        if not known:
            known = [row.new_zeros((len(call.rows), *row.shape[1:])) for row in rows]
            seen = torch.zeros(len(call.rows), dtype=torch.bool, device=plan.device)
        again = seen[shared]
        for output, (store, row) in enumerate(zip(known, rows, strict=True)):
            old = store.index_select(0, shared)[again]
            unlike = (
                (bits(row[again]) != bits(old)).flatten(1)
                if row.dim() > 1
                else (bits(row[again]) != bits(old))[:, None]
            )
            if bool(unlike.any()):
                raise red_row(f"{text}, {call.label}", output, row[again], old, shared[again], first_label)
            store.index_copy_(0, shared, row)
        compared += int(again.sum())
        for i in shared[~again].tolist():
            first_label[i] = call.label
        seen[shared] = True
    return compared


def red_row(
    name: str, output: int, got: torch.Tensor, old: torch.Tensor, which: torch.Tensor, first_label: dict[int, str]
) -> RedError:
    """The first differing row in words and bits."""
    places = (bits(got) != bits(old)).nonzero()
    index = tuple(int(i) for i in places[0])
    row = int(which[index[0]])
    unequal = Unequal(output, (row, *index[1:]), element(got, index), element(old, index), len(places), got.numel())
    return RedError(f"{name}: row {row} has other bits than in the call '{first_label[row]}'", name, unequal)


def rows_leg(plan: Plan) -> Evidence:
    """Alone, in company, at every position, with huge, NaN and Inf neighbours."""
    return groups_leg(plan, "companies")


def sweep_leg(plan: Plan) -> Evidence:
    """The same rows in calls of every size."""
    return groups_leg(plan, "sweep")


def paths_leg(plan: Plan) -> Evidence:
    """Attention: decode, prefill, chunked and cached calls."""
    return groups_leg(plan, "paths")
