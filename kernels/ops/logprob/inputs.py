"""Calls of logprob."""

from __future__ import annotations

import torch

from samebits.kernels.ops.logprob.contract import CHUNK
from samebits.kernels.ops.rows import Args, Case, Shape

SHAPES: tuple[Shape, ...] = ({"vocabulary": 151936}, {"vocabulary": 128256}, {"vocabulary": 32000})
SMALL_SHAPES: tuple[Shape, ...] = ({"vocabulary": 2 * CHUNK + 48}, {"vocabulary": 333})
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS = ("logits", "targets", "temperature")
GRADS = ("logits",)
SWEEP_MOST = 512
"""Rows of the largest call in the sweep of M: 152k float32 logits a row."""
FAR = 512.0
"""exp(-FAR / 2) is 0 in float32."""


def draw(shape: Shape, rows: int, dtype: torch.dtype, device: torch.device, seed: int, exact: bool) -> Args:
    """logits [rows, V] of about 3 nats spread, targets, a temperature per row. Exact: two levels, so that each
    exponential is 1 or 0.
    """
    rng = torch.Generator(device=device).manual_seed(seed)
    size = (rows, shape["vocabulary"])
    if exact:
        logits = torch.randint(0, 2, size, generator=rng, device=device).float() * FAR
        temperature = 2.0 ** torch.randint(-1, 2, (rows,), generator=rng, device=device)
    else:
        logits = torch.randn(size, generator=rng, device=device) * 3
        temperature = torch.rand((rows,), generator=rng, device=device) + 0.5
    targets = torch.randint(0, shape["vocabulary"], (rows,), generator=rng, device=device)
    return {
        "logits": logits.to(device=device, dtype=dtype),
        "targets": targets.to(device),
        "temperature": temperature.float().to(device),
    }


def cases(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> list[Case]:
    """With and without temperature; the target on every chunk edge; one sure token; masked (-Inf) tokens and chunks;
    NaN, Inf in a row alone.
    """

    def call(rows: int, seed: int, **changes: object) -> Args:
        return {**draw(shape, rows, dtype, device, seed, exact), **changes}

    vocabulary = shape["vocabulary"]
    found = [Case(f"{rows} rows", call(rows, rows)) for rows in (1, 2, 5)]
    edges = sorted({t for t in (0, CHUNK - 1, CHUNK, 2 * CHUNK - 1, vocabulary - 1) if t < vocabulary})
    targets = torch.tensor(edges, dtype=torch.int32, device=device)
    found.append(
        Case("targets on chunk edges, no temperature", call(len(edges), 11, targets=targets, temperature=None))
    )
    sure = call(2, 12)
    sure["logits"][torch.arange(2, device=device), sure["targets"]] = 4 * FAR
    found.append(Case("one sure token", sure))
    masked = call(2, 13, temperature=None)
    masked["logits"][:, vocabulary // 3 :] = float("-inf")
    masked["targets"] = masked["targets"] % (vocabulary // 3)
    found.append(Case("masked tail", masked))
    wide = draw({"vocabulary": vocabulary + 1}, 2, dtype, device, 14, exact)["logits"]
    found.append(Case("misaligned rows", call(2, 15, logits=wide[:, 1:])))
    for word, value in (("NaN", float("nan")), ("Inf", float("inf"))):
        one = call(1, 16)
        one["logits"][0, 5] = value
        found.append(Case(f"a row with {word}", one, finite=False))
    gone = call(1, 17)
    gone["logits"].fill_(float("-inf"))
    found.append(Case("a row of -Inf", gone, finite=False))
    return found
