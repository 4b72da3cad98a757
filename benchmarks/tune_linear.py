"""Choose the table of the linear operator on this GPU: python benchmarks/tune_linear.py --out TABLE.json

Every candidate must first give the contract's bits; only then is it timed, with weights cold in L2. The table is
frozen: it is read
at run time and never made there. Rows of shapes that are not tuned stay as they stand in TABLE.json, if it is there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import copies_for, graph_of, interleaved_us, replay_us
from torch import Tensor
from torch.nn import functional

from samebits.kernels.ops.linear import cublaslt, inputs
from samebits.kernels.ops.linear.triton import PLAIN, Config, chain, linear_kernel

EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Largest M of each row of the table; the last row holds for every larger M too."""
FEW, MANY = 8, 24
"""Algorithms of cuBLASLt that are tried; a call of many rows takes long enough to tell more of them apart."""
FINALISTS = 4
"""The fastest of the first timing, timed again in turn with the default: the clock falls during a long timing."""
FAVOURITE = "cublaslt 0"
NARROW = (
    *((8, 16, 512, w, s, True) for w, s in ((1, 3), (2, 3), (4, 3), (1, 4))),
    *(
        (8, 32, 256, 2, 4, True),
        (8, 32, 512, 4, 3, True),
        (8, 64, 256, 4, 4, True),
        (8, 64, 128, 4, 5, True),
        (8, 16, 1024, 2, 3, True),
    ),
    *((16, 8, 512, 1, 4, False), (16, 8, 1024, 1, 3, False), (16, 8, 512, 2, 4, False)),
    *(
        (16, 16, 512, 1, 3, False),
        (16, 16, 512, 2, 3, False),
        (16, 16, 256, 1, 5, False),
        (16, 16, 1024, 2, 3, False),
        (16, 16, 512, 2, 4, False),
    ),
    *((16, 32, 256, 2, 4, False), (16, 32, 512, 4, 3, False), (16, 64, 128, 4, 5, False)),
    *(
        (16, 16, 512, 2, 3, True),
        (16, 32, 256, 2, 4, True),
        (16, 64, 256, 4, 4, True),
        (16, 64, 128, 4, 6, True),
        (16, 128, 128, 4, 4, True),
    ),
)
MIDDLE = (
    *(
        (32, 16, 256, 2, 4, False),
        (32, 16, 512, 2, 3, False),
        (32, 32, 256, 2, 4, False),
        (32, 32, 256, 4, 4, False),
        (32, 64, 128, 4, 5, False),
    ),
    *(
        (32, 64, 256, 4, 3, True),
        (32, 64, 128, 4, 5, True),
        (32, 128, 128, 4, 4, True),
        (16, 16, 512, 2, 3, False),
        (32, 8, 512, 2, 4, False),
    ),
    *(
        (64, 16, 256, 4, 4, False),
        (64, 16, 128, 4, 6, False),
        (64, 32, 256, 4, 4, False),
        (64, 32, 128, 4, 6, False),
        (64, 64, 128, 4, 5, False),
    ),
    *(
        (64, 64, 128, 4, 5, True),
        (64, 128, 128, 4, 3, True),
        (64, 128, 64, 4, 5, True),
        (64, 64, 64, 4, 6, False),
        (64, 128, 128, 4, 3, False),
    ),
)
SLIM = (
    *(
        (32, 16, 512, 4, 3, False),
        (32, 16, 256, 4, 5, False),
        (64, 16, 512, 4, 2, False),
        (16, 16, 1024, 4, 3, False),
        (16, 16, 512, 4, 3, False),
    ),
    *(
        (32, 16, 256, 4, 6, False),
        (32, 16, 1024, 4, 2, False),
        (64, 8, 512, 4, 3, False),
        (32, 8, 512, 1, 3, False),
        (32, 8, 512, 4, 4, False),
        (16, 16, 512, 4, 4, True),
        (16, 32, 512, 4, 3, True),
        (32, 16, 512, 2, 3, True),
    ),
)
"""For outputs so few that only small tiles fill the GPU, at any M."""
WIDE = (
    *((128, 32, 128, 4, 5, False), (128, 64, 128, 4, 4, False), (128, 64, 64, 4, 6, False), (128, 64, 64, 8, 6, False)),
    *(
        (128, 128, 64, 8, 4, False),
        (128, 128, 64, 4, 4, False),
        (128, 128, 64, 4, 4, True),
        (128, 256, 64, 8, 3, False),
    ),
    *((64, 256, 64, 4, 4, False), (128, 256, 64, 8, 4, True), (64, 256, 64, 8, 4, False)),
)


def candidates(M: int, N: int) -> list[Config]:
    """Triton configurations worth a try; large shapes are left to cuBLASLt."""
    configs = NARROW if M <= 16 else MIDDLE if M <= 64 else MIDDLE + WIDE if M <= 256 else WIDE + MIDDLE[10:15]
    if N <= 2048 and M <= 1024:
        configs += tuple(c for c in NARROW + SLIM if c not in configs)
    if N > 8192:
        configs = tuple(c for c in configs if c[1] >= 16)
    if (M > 64 and N > 16384) or (M > 1024 and N % 8 == 0 and N > 1024):
        configs = ()
    return [Config(*c) for c in configs]


def compile_one(config: Config, divisible: bool) -> None:
    """Fill the compile cache for one configuration."""
    pointer = torch.empty(16, dtype=torch.bfloat16, device="cuda")
    size = 4096 if divisible else 4100
    try:
        linear_kernel.warmup(
            pointer,
            pointer,
            pointer,
            pointer,
            3,
            size,
            4096,
            BLOCK_M=config.block_m,
            BLOCK_N=config.block_n,
            BLOCK_K=config.block_k,
            SWAP=config.swap,
            EVEN_K=True,
            HAS_BIAS=False,
            PRECISION="ieee",
            num_warps=config.warps,
            num_stages=config.stages,
            grid=(1,),
        )
    except Exception as error:  # a configuration that does not fit is left out by `tune` too
        print("does not compile:", config, type(error).__name__, str(error)[:100], flush=True)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bits."""
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def measure(calls: list[Any], replays: int = 5) -> float:
    """Median microseconds; a graph of all calls."""
    times = sorted(replay_us(graph_of(calls), len(calls), replays))
    return times[len(times) // 2]


def finalists(found: dict[str, Any]) -> list[str]:
    """Of what was timed (microseconds; a text: why not), the fastest few, and cuBLASLt's favourite if it was timed.

    Raises:
        AssertionError: nothing was.
    """
    timed = sorted((us, name) for name, us in found.items() if isinstance(us, float))
    assert timed, found
    names = [name for _, name in timed[:FINALISTS]]
    favourite = isinstance(found.get(FAVOURITE), float) and FAVOURITE not in names
    return [*names, *([FAVOURITE] if favourite else [])]


def winner(times: dict[str, float]) -> str:
    """The fastest; cuBLASLt's favourite where a pinned algorithm is not 2% faster, as it needs no pin."""
    best = min(times, key=times.__getitem__)
    pinned = best.startswith("cublaslt") and FAVOURITE in times
    return FAVOURITE if pinned and times[best] > 0.98 * times[FAVOURITE] else best


def tune(N: int, K: int, has_bias: bool, log: list[dict[str, Any]]) -> list[list[Any]]:
    """Rows of the table for one shape."""
    copies = copies_for(2 * N * K, 64)
    weights = (torch.randn(copies, N, K, device="cuda") * K**-0.5).bfloat16()
    x_all = torch.randn(EDGES[-1], K, device="cuda").bfloat16()
    truth = chain(x_all, weights[0], None, PLAIN)
    rows = []
    for M in EDGES:
        x = x_all[:M]
        used = range(copies if M <= 256 else min(copies, 4))
        problem = cublaslt.Problem(M, N, K, torch.bfloat16, False, 0)
        options: dict[str, tuple[list[Any], Any]] = {}
        algos = cublaslt.choices(problem, MANY if M >= 1024 else FEW) if M > 1 and N % 8 == 0 else []
        for rank, algo in enumerate(algos):
            options[f"cublaslt {rank}"] = (
                ["cublaslt", None if rank == 0 else algo],
                partial(cublaslt.matmul, pinned=algo),
            )
        for c in candidates(M, N):
            entry = ["triton", c.block_m, c.block_n, c.block_k, c.warps, c.stages, int(c.swap)]
            options[str(entry)] = (entry, partial(chain, config=c))
        found: dict[str, Any] = {}
        for name, (_, function) in options.items():
            try:
                if not same(function(x, weights[0], None), truth[:M]):
                    found[name] = "other bits"
                    continue
                found[name] = round(measure([partial(function, x, weights[i], None) for i in used]), 2)
            except Exception as error:
                found[name] = f"{type(error).__name__}: {str(error)[:80]}"
        arms = {name: [partial(options[name][1], x, weights[i], None) for i in used] for name in finalists(found)}
        arms["default"] = [partial(functional.linear, x, weights[i]) for i in used]
        times = interleaved_us(arms)
        default = times.pop("default")
        name = winner(times)
        best = (times[name], options[name][0])
        ratio = default / best[0]
        log.append(
            {
                "N": N,
                "K": K,
                "M": M,
                "default_us": default,
                "best_us": best[0],
                "ratio": ratio,
                "best": best[1],
                "all": found,
                "in_turn": times,
            }
        )
        print(
            f"{N}x{K} M={M}: default {default:.2f} best {best[0]:.2f} ratio {ratio:.3f} {str(best[1])[:60]}", flush=True
        )
        rows.append([None if EDGES[-1] == M else M, best[1]])
    return rows


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--shapes", nargs="*", help="NxK; default: all of inputs.py")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop before a new shape after this time")
    options = parser.parse_args()
    begun = time.monotonic()
    every = [Config(*c) for c in dict.fromkeys(NARROW + MIDDLE + SLIM + WIDE)]
    with multiprocessing.get_context("spawn").Pool(14) as pool:
        pool.starmap(compile_one, [(c, d) for c in [PLAIN, *every] for d in (True, False)], chunksize=1)
    print(f"compiled in {time.monotonic() - begun:.1f} s", flush=True)
    shapes = options.shapes or [f"{s['n']}x{s['k']}" for s in inputs.SHAPES]
    log: list[dict[str, Any]] = []
    table = start_of(options.out)
    for name in shapes:
        if time.monotonic() - begun > options.seconds:
            print("out of time before", name)
            break
        N, K = map(int, name.split("x"))
        table["shapes"][name] = tune(N, K, False, log)
        torch.cuda.empty_cache()
        options.out.write_text(text_of(table), encoding="utf-8")
        if options.log:
            options.log.write_text(json.dumps(log), encoding="utf-8")


if __name__ == "__main__":
    main()
