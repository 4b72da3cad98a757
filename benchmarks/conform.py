"""Bits and accuracy of linear and attention on this GPU: python benchmarks/conform.py --out FILE [--fa3 LIBRARY]

Every line is a number of differing elements, which must be 0, or a ratio of errors. FlashAttention 3 stands beside
for comparison.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fa3
import torch
from torch import Tensor
from torch.nn import functional

from samebits.kernels.ops.attention import inputs as attention_inputs
from samebits.kernels.ops.attention.contract import contract as attention_contract
from samebits.kernels.ops.attention.op import attention
from samebits.kernels.ops.attention.reference import reference as attention_reference
from samebits.kernels.ops.attention.replaced import replaced as attention_replaced
from samebits.kernels.ops.attention_varlen import inputs as varlen_inputs
from samebits.kernels.ops.attention_varlen.contract import contract as varlen_contract
from samebits.kernels.ops.attention_varlen.op import attention_varlen
from samebits.kernels.ops.attention_varlen.reference import reference as varlen_reference
from samebits.kernels.ops.attention_varlen.replaced import replaced as varlen_replaced
from samebits.kernels.ops.linear import arrivals, dispatch
from samebits.kernels.ops.linear import inputs as linear_inputs
from samebits.kernels.ops.linear.contract import contract as linear_contract
from samebits.kernels.ops.linear.contract import contract_wide
from samebits.kernels.ops.linear.op import linear, linear_float32
from samebits.kernels.ops.linear.reference import reference as linear_reference
from samebits.kernels.ops.linear.replaced import replaced as linear_replaced
from samebits.kernels.ops.rows import RowGroup

CUDA = torch.device("cuda")
DENSE, LARGEST = 300, 8192
Rows = list[dict[str, Any]]
Task = tuple[Callable[..., Rows], tuple[Any, ...]]


def differing(a: Tensor, b: Tensor) -> int:
    """Elements with unequal bits."""
    kind = torch.int32 if a.element_size() == 4 else torch.int16
    return int((a.contiguous().view(kind) != b.contiguous().view(kind)).sum())


def linear_bits(index: int) -> Rows:
    """One shape: M of 1 to 300, then edges to 8192; row positions; neighbours; the weight in parts."""
    shape = linear_inputs.SHAPES[index]
    edges = sorted({e + s for p in range(9, 14) for e in (1 << p,) for s in (-1, 0, 1) if e + s <= LARGEST})
    args = linear_inputs.draw(shape, LARGEST, torch.bfloat16, CUDA, 1, False)
    x, weight, bias = args["x"], args["weight"], args["bias"]
    truth = linear_contract(x, weight, bias)
    found = sum(differing(linear(x[:m], weight, bias), truth[:m]) for m in [*range(1, DENSE + 1), *edges])
    moved = beside = 0
    for m in (2, 3, 17, 64, 130, 600):
        for shift in (1, m // 2, m - 1):
            moved += differing(linear(x[:m].roll(shift, 0), weight, bias), truth[:m].roll(shift, 0))
        for value in (float("nan"), float("inf"), 1e38):
            flood = torch.full_like(x[:m], value)
            flood[m // 2] = x[m // 2]
            beside += differing(linear(flood, weight, bias)[m // 2], truth[m // 2])
    split = 0  # merged products and shards of tensor parallelism are other N of the same outputs
    for parts in (2, 3, 8):
        biases = [None] * parts if bias is None else bias.chunk(parts)
        for m in (1, 16, 300):
            pieces = [linear(x[:m], *part) for part in zip(weight.chunk(parts), biases, strict=True)]
            split += differing(torch.cat(pieces, 1), truth[:m])
    bits = {"sweep of M": found, "positions": moved, "neighbours": beside, "in parts": split}
    row: dict[str, Any] = {
        "op": "linear",
        "case": f"{shape['n']}x{shape['k']}{' bias' if bias is not None else ''}",
        **bits,
    }
    if shape["n"] * shape["k"] < 1 << 28:
        row |= linear_forms(x, weight, bias)
        args = linear_inputs.draw(shape, 64, torch.bfloat16, CUDA, 2, False)
        exact = linear_reference(**args)
        row["error ratio"] = error(linear(**args), exact) / error(linear_replaced(**args), exact)
    return [row]


def off_by_one(x: Tensor) -> Tensor:
    """The same values at an address that is no multiple of 16 bytes."""
    moved = x.new_empty(x.numel() + 1)[1:].view(x.shape)
    return moved.copy_(x)


def linear_forms(x: Tensor, weight: Tensor, bias: Tensor | None) -> dict[str, int]:
    """Differing elements of what a table row does not choose: results in float32, addresses that are not aligned,
    float16, and where K has segments what runs when there are no counters. Also products that are all -0.0."""
    found = {"float32 result": 0, "not aligned": 0, "float16": 0, "minus zeros": 0}
    for m in (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192):
        minus, positive = torch.full_like(x[:m], -0.0), weight.abs()
        found["minus zeros"] += differing(linear(minus, positive), linear_contract(minus, positive))
    half = tuple(None if t is None else t.half() for t in (weight, bias))
    for m in (1, 2, 17, 130, 300):
        found["float32 result"] += differing(linear_float32(x[:m], weight, bias), contract_wide(x[:m], weight, bias))
        truth = linear_contract(x[:m], weight, bias)
        found["not aligned"] += differing(linear(off_by_one(x[:m]), weight, bias), truth)
        halves = x[:m].half(), *half
        found["float16"] += differing(linear(*halves), linear_contract(*halves))
        choice = dispatch.choose(m, *weight.shape, x.dtype, True, bias is not None, 0)
        if choice.way.startswith("join"):
            apart = replace(choice, way=choice.way.replace("join", "split"))
            folded = differing(dispatch.launch(apart, x[:m], weight, bias), truth)
            found["second launch folds"] = found.get("second launch folds", 0) + folded
    return found


def beside_each_other() -> Rows:
    """Graphs and eager calls whose last program folds, on three streams at once: differing elements, counters left."""
    shape = {"n": 512, "k": 12288, "bias": 0}
    weight = linear_inputs.draw(shape, 1, torch.bfloat16, CUDA, 1, False)["weight"]
    tokens = [torch.randn(m, shape["k"], device=CUDA).bfloat16() for m in (1, 8, 16)]
    truth = [linear_contract(x, weight) for x in tokens]
    way = dispatch.Choice(dispatch.Config(16, 16, 512, 2, 3), way="join")

    def calls(x: Tensor) -> list[Tensor]:
        return [dispatch.launch(way, x, weight, None) for _ in range(20)]

    calls(tokens[0])
    torch.cuda.synchronize()
    graphs, outs = [], []
    for x in tokens[:2]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs.append(calls(x))
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in range(2)]
    found = 0
    for _ in range(50):
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        eager = calls(tokens[2])
        torch.cuda.synchronize()
        for many, right in zip((*outs, eager), truth, strict=True):
            found += sum(differing(y, right) for y in many)
            for y in many:
                y.zero_()
    return [
        {"op": "linear", "case": "beside each other", "differing": found, "counters left": int(not arrivals.settled())}
    ]


def groups_bits(groups: Iterator[RowGroup], op: Callable[..., Tensor]) -> dict[str, int]:
    """Differing elements of each group of calls whose shared rows must have equal bits."""
    found = {}
    for group in groups:
        known: Tensor | None = None
        seen = torch.zeros(0, dtype=torch.bool, device=CUDA)
        count = 0
        for call in group.calls:
            out = op(**call.args)
            shared = torch.tensor([i for i, p in enumerate(call.rows) if p is not None], device=CUDA)
            rows = out[torch.tensor([p for p in call.rows if p is not None], device=CUDA)]
            if known is None:
                known = out.new_zeros((len(call.rows), *out.shape[1:]))
                seen = torch.zeros(len(call.rows), dtype=torch.bool, device=CUDA)
            again = seen[shared]
            count += differing(rows[again], known[shared[again]])
            known[shared[~again]] = rows[~again]
            seen[shared] = True
        found[group.name] = count
    return found


def attention_bits(name: str, index: int) -> Rows:
    """One shape, paged or varlen: cases against the contract and float64, then companies, batch sizes and paths."""
    inputs, op, contract, reference, replaced = (
        (attention_inputs, attention, attention_contract, attention_reference, attention_replaced)
        if name == "attention"
        else (varlen_inputs, attention_varlen, varlen_contract, varlen_reference, varlen_replaced)
    )
    shape = inputs.SHAPES[index]  # type: ignore[attr-defined]
    where = (shape, torch.bfloat16, CUDA, False)
    row: dict[str, Any] = {"op": name, "case": str(dict(shape)), "contract": 0, "error ratio": 0.0}
    squares: list[float] = []
    old_squares: list[float] = []
    for case in inputs.cases(*where):  # type: ignore[attr-defined]
        got, exact = op(**case.args), reference(**case.args)  # type: ignore[operator]
        row["contract"] += differing(got, contract(**case.args))  # type: ignore[operator]
        squares += [error(got, exact) ** 2]
        old_squares += [max(error(replaced(**case.args), exact), error(exact.to(got.dtype), exact)) ** 2]  # type: ignore[operator]
    row["error ratio"] = (sum(squares) / sum(old_squares)) ** 0.5
    for kind in ("companies", "sweep", "paths"):
        if hasattr(inputs, kind):
            row |= groups_bits(getattr(inputs, kind)(*where), op)
    return [row]


def error(got: Tensor, exact: Tensor) -> float:
    """Relative error over all elements."""
    return float((got.double() - exact).norm() / exact.norm())


def gradients() -> Rows:
    """Gradients of varlen attention: error ratio to the replaced operator's, and equality from run to run."""
    rows: Rows = []
    for shape in varlen_inputs.SHAPES[:4]:
        args = varlen_inputs.draw(shape, 700, torch.bfloat16, CUDA, 3, False)
        names = ("q", "k", "v")
        grad = torch.randn_like(args["q"])

        exact, old, mine, again = (
            through(f, args, grad, w)
            for f, w in ((varlen_reference, True), (varlen_replaced, False), *[(attention_varlen, False)] * 2)
        )
        for n, e, o, m, a in zip(names, exact, old, mine, again, strict=True):
            rows.append(
                {
                    "op": "gradient",
                    "case": f"{dict(shape)} {n}",
                    "error ratio": error(m, e) / error(o, e),
                    "run to run": differing(m, a),
                }
            )
    return rows


def through(function: Callable[..., Tensor], args: dict[str, Any], grad: Tensor, wide: bool) -> tuple[Tensor, ...]:
    """Gradients of q, k, v; wide: in float64."""
    leaves = [(args[n].double() if wide else args[n]).detach().requires_grad_() for n in ("q", "k", "v")]
    out = function(**{**args, **dict(zip(("q", "k", "v"), leaves, strict=True))})
    return torch.autograd.grad(out, leaves, grad.to(out.dtype))


def foreign() -> Rows:
    """A matmul that splits K keeps its bits in a process that uses the operator, whose own K is one segment here."""
    x, weight = torch.randn(16, 8192, device=CUDA).bfloat16(), torch.randn(512, 8192, device=CUDA).bfloat16()
    before = functional.linear(x, weight)
    mine = linear(x, weight)
    after = functional.linear(x, weight)
    return [
        {
            "op": "foreign matmul",
            "differs after": differing(before, after),
            "own bits unlike its": differing(before, mine),
        }
    ]


def side_by_side(library: Path | None) -> Rows:
    """A decode row beside a prefill that grows: FlashAttention 3 with one split, as vLLM's batch-invariant mode runs
    it, and ours."""
    rows: Rows = []
    if not fa3.load(library):
        return rows
    for heads, key_heads, head in ((8, 8, 64), (32, 8, 64), (8, 1, 64), (8, 8, 128), (32, 8, 128), (8, 1, 128)):
        shape = {"heads": heads, "key_heads": key_heads, "head": head, "page": 16}
        one = attention_inputs.story(shape, 3000, torch.bfloat16, CUDA, 1, False)
        row: dict[str, Any] = {
            "op": "beside a growing prefill",
            "case": str(shape),
            "fa3 changes at": [],
            "ours changes at": [],
        }
        first: dict[str, Tensor] = {}
        for n in (1, 2, 4, 8, 9, 10, 16, 17, 33, 65, 129, 300):
            other = attention_inputs.story(shape, n, torch.bfloat16, CUDA, 2, False)
            args = attention_inputs.assemble(shape, [(one, 2999, 3000), (other, 0, n)], 3, False, 0.0)
            call = fa3.Call(
                args["q"],
                key_heads,
                args["cu_seqlens_q"],
                args["seq_lens"],
                (args["max_query_len"], args["max_seq_len"]),
                16,
                1,
            )
            outs = {
                "fa3": call(args["q"], args["k_cache"], args["v_cache"], args["block_table"], args["scale"])[0].clone(),
                "ours": attention(**args)[0],
            }
            for name, out in outs.items():
                if differing(out, first.setdefault(name, out)):
                    row[f"{name} changes at"].append(n)
        rows.append(row)
    return rows


def guarded(task: Task) -> Rows:
    """The rows of a task; a task that breaks gives a row that says so."""
    function, args = task
    try:
        return function(*args)
    except Exception as problem:
        return [{"op": function.__name__, "case": str(args), "failed": f"{type(problem).__name__}: {problem}"}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fa3", type=Path)
    parser.add_argument("--linear", nargs="*", help="only linear, and only these shapes, as NxK")
    parser.add_argument("--workers", type=int, default=8, help="processes that share the GPU; bits do not mind")
    options = parser.parse_args()
    tasks: list[Task] = [
        (foreign, ()),
        (beside_each_other, ()),
        (gradients, ()),
        (side_by_side, (options.fa3,)),
    ]
    tasks += [(attention_bits, ("attention", i)) for i in range(len(attention_inputs.SHAPES))]
    tasks += [(attention_bits, ("attention_varlen", i)) for i in range(len(varlen_inputs.SHAPES))]
    linear_tasks: dict[str, Task] = {
        f"{s['n']}x{s['k']}": (linear_bits, (i,)) for i, s in enumerate(linear_inputs.SHAPES)
    }
    few: list[Task] = [(beside_each_other, ())]
    few += [linear_tasks[name] for name in options.linear or ()]
    tasks = few if options.linear else [*tasks, *linear_tasks.values()]
    rows: Rows = []
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for found in pool.imap_unordered(guarded, tasks):
            rows += found
            options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
            for row in found:
                print(row, flush=True)


if __name__ == "__main__":
    main()
