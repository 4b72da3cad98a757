"""The legs about one device and plain calls: containment, bits, repetition, row groups."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import torch

from samebits.tools.gate.candidate.compare import Unequal, bits, element, first_difference, form_difference
from samebits.tools.gate.candidate.guard import unwritten
from samebits.tools.gate.candidate.plan import CannotRunError, Evidence, Outputs, Plan, RedError

if TYPE_CHECKING:
    from samebits.kernels.ops.rows import RowGroup

REPEATS = 100
FRESH = 3


def builds(plan: Plan) -> Evidence:
    """The source loads, and one call gives outputs of the operator's form."""
    plan.link.ask("load", "does not build")
    name, case = next(plan.cases())
    problem = form_difference(plan.call(case.args, name), plan.expected(case.args))
    if problem:
        raise RedError(f"{name}: {problem}")
    nothing_left(plan, "when it was loaded and called once")
    return Evidence("loaded; the first call gives outputs of the operator's form", 1)


def nothing_left(plan: Plan, when: str) -> None:
    """Raise RedError when processes that the candidate started still run."""
    if left := plan.link.left_behind():
        raise RedError(f"left {left} process{'es' if left > 1 else ''} behind {when}: a kernel starts none")


def contained(plan: Plan) -> Evidence:
    """Between guard bands: no write outside its outputs, no changed input, no element left unwritten, no output that is
    an input. And no process is left behind.
    """
    checked = 0
    for name, case in plan.cases():
        found, _, answer = plan.link.ask_outputs("guarded", name, args=case.args)
        inputs = [key for key, value in case.args.items() if isinstance(value, torch.Tensor)]
        count = answer.get("count")
        if answer.get("inputs") != inputs or count != len(found) - len(inputs):
            raise RedError(f"{name}: its process answers out of turn")
        if answer.get("broken"):
            raise RedError(f"{name}: writes outside its output: {str(answer['broken'])[:300]}")
        for key, after in zip(inputs, found[count:], strict=True):
            if first := first_difference((after,), (case.args[key],)):
                raise RedError(f"{name}: changes its input {key}", name, first)
            if key in answer.get("shared", ()):
                raise RedError(f"{name}: an output is a view of the input {key}; outputs must be new memory")
        for i, out in enumerate(found[:count]):
            if left := unwritten(out):
                raise RedError(f"{name}: {left} elements of output {i} were never written")
        checked += 1
    nothing_left(plan, "by these calls")
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
        fresh_inputs(plan, shape, dtype, text)
        checked += FRESH
    return Evidence(
        f"{REPEATS} equal calls for each dtype and shape; then {FRESH} on new inputs at the same addresses, with the "
        "bits of the contract",
        checked,
    )


def fresh_inputs(plan: Plan, shape: dict[str, int], dtype: torch.dtype, text: str) -> None:
    """Inputs that nobody could know, of the same shapes and in the same memory as those of the calls before: a result
    that was kept, or prepared for the gate's own inputs, is not theirs.
    """
    for _ in range(FRESH):
        seed = secrets.randbelow(1 << 31)
        args = plan.draw(shape, 5, dtype, seed)
        what = (
            f"a kept result: on new inputs (seed {seed}), after {REPEATS} calls on others, not the bits of the contract"
        )
        same_bits(plan.call(args, text), plan.expected(args), text, what)


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
