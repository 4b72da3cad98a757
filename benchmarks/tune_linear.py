"""Choose the table of the linear operator on this GPU: python benchmarks/tune_linear.py --out TABLE.json

Every candidate must first give the contract's bits; only then is it timed, with weights cold in L2. The table is
frozen: it is read at run time and never made there. Rows of shapes and sizes that are not tuned stay as they stand in
TABLE.json, if it is there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from tiles_linear import entries, whole
from timing import copies_for, graph_of, interleaved_us, replay_us
from torch import Tensor
from torch.nn import functional

from samebits.kernels.ops.linear import arrivals, cublaslt, inputs
from samebits.kernels.ops.linear.contract import contract
from samebits.kernels.ops.linear.dispatch import launch, parse
from samebits.kernels.ops.linear.segments import length, segments

Rows = dict[str, tuple[int, ...]]
"""Shape -> numbers of rows to tune."""
EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Largest M of each row of the table; the last row holds for every larger M too."""
FEW, MANY = 8, 30
"""Algorithms of cuBLASLt that are tried: many for small weights, and for many rows, where times tell them apart."""
SMALL = 1 << 24
FINALISTS = 4
"""The fastest of the first timing, timed again in turn with the default: the clock falls during a long timing."""
FAVOURITES = ("cublaslt 0", "batched 0")


def compile_one(entry: list[Any], N: int, K: int) -> bool:
    """Fill the compile cache for one entry, by a call in a process of its own: whether it came back."""
    try:
        x, weight = (torch.zeros(rows, K, dtype=torch.bfloat16, device="cuda") for rows in (300, N))
        launch(parse(entry), x, weight, None)
        torch.cuda.synchronize()
    except Exception as error:
        print("does not run:", entry, type(error).__name__, str(error)[:100], flush=True)
        return False
    return True


def form(entry: list[Any], N: int, K: int) -> tuple[Any, ...]:
    """What a kernel is compiled for: the entry and these properties of the sizes, not each size."""
    if entry[0] == "hopper":
        return entry, N % entry[2] == 0
    block_k = entry[3] if segments(K) == 1 else min(entry[3], length(K) & -length(K))
    return entry, N % 16 == 0, K % 16 == 0, block_k, K % block_k == 0


def compile_all(wanted: Rows, workers: int, seconds: float) -> set[str]:
    """Compiles everything that is not cuBLASLt's, in parallel: the forms that ran. What hangs or comes too late is left
    out; every row's first candidates come before the second ones."""
    tasks = {}
    rows = [(M, *map(int, name.split("x"))) for name, sizes in wanted.items() for M in sizes]
    for turn in zip_longest(*(entries(*row) for row in rows)):
        for (_, N, K), entry in zip(rows, turn, strict=True):
            if entry is not None:
                narrow = N % 16 == 0 and entry[0] != "hopper"
                tasks.setdefault(str(form(entry, N, K)), (entry, 128 if narrow else N, K))
    begun, ran = time.monotonic(), set()
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        waiting = {name: pool.apply_async(compile_one, task) for name, task in tasks.items()}
        for name, result in waiting.items():
            try:
                if result.get(max(0.0, begun + seconds - time.monotonic())):
                    ran.add(name)
            except multiprocessing.TimeoutError:
                print("does not end:", name, flush=True)
    return ran


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bits."""
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def measure(calls: list[Any], best: float) -> float:
    """Median microseconds; a graph of all calls. What one replay shows far behind the best is not worth more."""
    graph = graph_of(calls)
    times = replay_us(graph, len(calls), 1)
    if times[0] < 1.5 * best:
        times = sorted(replay_us(graph, len(calls), 5))
    return times[len(times) // 2]


def finalists(found: dict[str, Any]) -> list[str]:
    """Of what was timed (microseconds; a text: why not), the fastest few, and cuBLASLt's favourites if they were timed.

    Raises:
        AssertionError: nothing was.
    """
    timed = sorted((us, name) for name, us in found.items() if isinstance(us, float))
    assert timed, found
    names = [name for _, name in timed[:FINALISTS]]
    return [*names, *(name for name in FAVOURITES if isinstance(found.get(name), float) and name not in names)]


def winner(times: dict[str, float]) -> str:
    """The fastest; cuBLASLt's favourite where a pinned algorithm is not 2% faster, as it needs no pin."""
    best = min(times, key=times.__getitem__)
    favourite = f"{best.split()[0]} 0"
    pinned = favourite in FAVOURITES and favourite in times
    return favourite if pinned and times[best] > 0.98 * times[favourite] else best


def options_of(M: int, N: int, K: int, ran: set[str]) -> dict[str, list[Any]]:
    """Names and table entries of all that is tried; ran: forms of Triton's and Gluon's that do."""
    found: dict[str, list[Any]] = {}
    S = segments(K)
    if M > 1 and N % 8 == 0 and (S == 1 or (whole(K) and M > 16)):
        problem = cublaslt.Problem(M, N, K, torch.bfloat16, False, 0, S)
        kind = "cublaslt" if S == 1 else "batched"
        try:
            algos = cublaslt.choices(problem, MANY if S == 1 and (M >= 1024 or N * K <= SMALL) else FEW)
        except cublaslt.CublasLtError as error:
            print(f"{problem}: {error}", flush=True)
            algos = []
        for rank, algo in enumerate(algos):
            if rank == 0 or cublaslt.usable(problem, algo):
                found[f"{kind} {rank}"] = [kind, None if rank == 0 else algo]
    return found | {str(entry): entry for entry in entries(M, N, K) if str(form(entry, N, K)) in ran}


def first_times(
    options: dict[str, list[Any]], x: Tensor, weights: Tensor, used: range, truth: Tensor
) -> dict[str, Any]:
    """Microseconds of what has the contract's bits, or why there are none."""
    found: dict[str, Any] = {}
    best = float("inf")
    for name, entry in options.items():
        call = partial(launch, parse(entry), x)
        try:
            if not same(call(weights[0], None), truth):
                found[name] = "other bits"
                continue
            found[name] = round(measure([partial(call, weights[i], None) for i in used], best), 2)
            arrivals.release()  # the graph is gone
            best = min(best, found[name])
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[:80]}"
    return found


def tune(N: int, K: int, sizes: tuple[int, ...], ran: set[str], log: list[dict[str, Any]]) -> dict[int, list[Any]]:
    """The best entry of one shape for each of some M; ran: what `compile_all` gave."""
    copies = copies_for(2 * N * K, 64)
    weights = (torch.randn(copies, N, K, device="cuda") * K**-0.5).bfloat16()
    x_all = torch.randn(max(sizes), K, device="cuda").bfloat16()
    truth = contract(x_all, weights[0])
    rows = {}
    for M in sizes:
        begun = time.monotonic()
        x = x_all[:M]
        used = range(copies if M <= 256 else min(copies, 4))
        options = options_of(M, N, K, ran)
        found = first_times(options, x, weights, used, truth[:M])
        arms = {
            name: [partial(launch, parse(options[name]), x, weights[i], None) for i in used]
            for name in finalists(found)
        }
        arms["default"] = [partial(functional.linear, x, weights[i]) for i in used]
        times = interleaved_us(arms)
        arrivals.release()
        default = times.pop("default")
        name = winner(times)
        ratio = default / times[name]
        rows[M] = options[name]
        row = {"N": N, "K": K, "M": M, "default_us": default, "best_us": times[name], "ratio": ratio}
        log.append({**row, "best": rows[M], "all": found, "in_turn": times})
        text = f"default {default:.2f} best {times[name]:.2f} ratio {ratio:.3f} {name} {str(rows[M])[:60]}"
        left_out = sum(isinstance(us, str) for us in found.values())
        spent = time.monotonic() - begun
        print(f"{N}x{K} M={M}: {text} ({len(found)} tried, {left_out} left out, {spent:.1f} s)", flush=True)
    assert arrivals.settled(), "a counter of arrivals is not zero"
    return rows


def merged(rows: list[list[Any]], found: dict[int, list[Any]]) -> list[list[Any]]:
    """Rows of a shape with those of some M put in or in place of the old ones; the largest M stands for all above."""
    table = {float("inf") if edge is None else edge: entry for edge, entry in rows}
    table |= {float("inf") if EDGES[-1] == M else M: entry for M, entry in found.items()}
    return [[None if edge == float("inf") else edge, table[edge]] for edge in sorted(table)]


def start_of(out: Path) -> dict[str, Any]:
    """The table as it stands; a new one where there is none."""
    version = cublaslt.version()
    table: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"cublaslt": version}
    if table["cublaslt"] != version:
        raise SystemExit(
            f"{out} pins algorithms of cuBLASLt {table['cublaslt']}, here is {version}: tune into a new file"
        )
    return {"shapes": {}} | table


def text_of(table: dict[str, Any]) -> str:
    """The file of a table, a line for each shape."""
    lines = ",\n".join(f'  "{k}": {json.dumps(v)}' for k, v in table["shapes"].items())
    return f'{{"cublaslt": {table["cublaslt"]}, "shapes": {{\n{lines}\n}}}}\n'


def wanted_of(rows: list[str]) -> Rows:
    """Texts NxK:M, by shape."""
    wanted: Rows = {}
    for row in rows:
        name, _, size = row.partition(":")
        if not size.isdigit() or int(size) not in EDGES:
            raise SystemExit(f"--rows {row}: NxK:M with M of {', '.join(map(str, EDGES))}")
        wanted[name] = tuple(sorted({*wanted.get(name, ()), int(size)}))
    return wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--shapes", nargs="*", help="NxK; default: all of inputs.py")
    parser.add_argument("--sizes", nargs="*", type=int, choices=EDGES, help="M of the rows to tune; default: all")
    parser.add_argument("--rows", nargs="*", default=[], help="NxK:M of single rows to tune, in place of the two")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop before a new shape after this time")
    parser.add_argument("--compile-seconds", type=float, default=90, help="leave out what has not run by then")
    parser.add_argument("--workers", type=int, default=14, help="processes that compile")
    options = parser.parse_args()
    begun = time.monotonic()
    some = bool(options.sizes or options.rows)
    if options.rows:
        wanted = wanted_of(options.rows)
    else:
        shapes = options.shapes or [f"{s['n']}x{s['k']}" for s in inputs.SHAPES]
        wanted = dict.fromkeys(shapes, tuple(sorted(options.sizes or EDGES)))
    log: list[dict[str, Any]] = []
    table = start_of(options.out)
    if some and (missing := sorted(set(wanted) - set(table["shapes"]))):
        raise SystemExit(f"{options.out} has no rows of {missing} that could stay")
    ran = compile_all(wanted, options.workers, options.compile_seconds)
    print(f"compiled in {time.monotonic() - begun:.1f} s", flush=True)
    for name, sizes in wanted.items():
        if time.monotonic() - begun > options.seconds:
            print("out of time before", name)
            break
        N, K = map(int, name.split("x"))
        found = tune(N, K, sizes, ran, log)
        table["shapes"][name] = merged(table["shapes"][name] if some else [], found)
        torch.cuda.empty_cache()
        options.out.write_text(text_of(table), encoding="utf-8")
        if options.log:
            options.log.write_text(json.dumps(log), encoding="utf-8")
        print(f"{name} done at {time.monotonic() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
