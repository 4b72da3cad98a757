"""Linear layer. Legend: T token rows, K inputs, N outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from samebits.tools.diff.causes.observation import Arithmetic, Observation, Option, Setting
from samebits.tools.diff.causes.together import in_groups

if TYPE_CHECKING:
    from collections.abc import Mapping

SPLITS = (2, 3, 4, 5, 6, 7, 8, 12, 16)
BLOCKS = (16, 32, 64, 128, 256, 512)


def settings(seen: Observation) -> tuple[Setting, ...]:
    """What two linear layers may do differently."""
    size = seen["x"].shape[-1]
    order = [
        Option("native", "PyTorch's own kernel", whole=True),
        Option("float32", "inputs widened, PyTorch's float32 product, one rounding", whole=True),
    ]
    order += together_options(seen)
    order += [
        Option(f"splits:{count}", f"K cut into {count} segments, their float32 sums added in ascending order")
        for count in SPLITS
        if count <= size
    ]
    order += [
        Option(f"blocks:{width}", f"one float32 accumulator, K in blocks of {width}")
        for width in BLOCKS
        if width < size
    ]
    order += [
        Option(
            f"rounded:{count}", f"K cut into {count} segments, each sum rounded to the activation dtype", cause="cast"
        )
        for count in (2, 4, 8)
        if count <= size
    ]
    order.append(Option("float64", "summed in float64", cause="precision"))
    found = [Setting("order", "order_static", tuple(order))]
    if seen["x"].dtype == torch.float32:
        found.append(Setting("factors", "precision", (
            Option("given", "factors as given"),
            Option("tf32", "factors rounded to 10 mantissa bits (TF32)"),
            Option("tf32_cut", "factors cut to 10 mantissa bits (TF32 by truncation)"),
            Option("bf16", "factors rounded to bfloat16"),
        )))  # fmt: skip
    if seen.rollout.dtype == torch.float32:
        found.append(Setting("output", "cast", (
            Option("own", "the accumulator rounded once to the output dtype"),
            Option("bf16", "the result rounded to bfloat16, then widened"),
        )))  # fmt: skip
    if seen.has("bias"):
        late = "order_static" if seen.rollout.dtype == torch.float32 else "cast"
        found.append(Setting("bias", late, (
            Option("accumulator", "the bias is added to the float32 accumulator"),
            Option("rounded", "the bias is added to the product rounded to the output dtype"),
            Option("none", "no bias", cause="formula"),
        )))  # fmt: skip
    return tuple(found)


GROUPS = {"sequences": "sequence", "passes": "pass", "merged_passes": "pass"}
"""Input by which the rows go through the kernel in groups."""


def together_options(seen: Observation) -> list[Option]:
    """The native kernel on fewer rows at a time, or with more outputs: its bits may follow how many there are."""
    own = "PyTorch's own kernel"
    batch = {
        "sequences": f"{own}, each sequence by itself",
        "passes": f"{own}, the rows of each forward pass together",
        "merged_passes": f"{own} over the merged weight, the rows of each forward pass together",
    }
    found = [
        Option(name, words, cause="order_batch", whole=True)
        for name, words in batch.items()
        if seen.has(GROUPS[name]) and (seen.has("merged") or name != "merged_passes")
    ]
    if seen.has("merged"):
        found.append(Option("merged", f"{own} over the merged weight", whole=True))
    return [*found, Option("rows", f"{own}, each row by itself", cause="order_batch", whole=True)]


def native(
    seen: Observation, x_TK: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None, order: str
) -> torch.Tensor:
    """PyTorch's own kernel over all rows or over groups of them."""
    if order not in GROUPS and order != "rows":
        return F.linear(x_TK, weight_NK, bias_N)
    number_T = seen[GROUPS[order]] if order in GROUPS else torch.arange(len(x_TK), device=x_TK.device)
    return in_groups(number_T, lambda rows: F.linear(x_TK[rows], weight_NK, bias_N))


def cut_mantissa(x: torch.Tensor, *, nearest: bool) -> torch.Tensor:
    """float32 with the low 13 bits of the mantissa gone: by truncation, or to nearest (ties away, as cvt.rna.tf32)."""
    bits = x.float().contiguous().view(torch.int32)
    bits = bits + 0x1000 if nearest else bits
    return (bits & ~0x1FFF).view(torch.float32)


def factor(x: torch.Tensor, how: str) -> torch.Tensor:
    """A factor in the precision the product is said to use."""
    if how == "bf16":
        return x.to(torch.bfloat16)
    return x if how == "given" else cut_mantissa(x, nearest=how == "tf32")


def product(x_TK: torch.Tensor, weight_NK: torch.Tensor, order: str) -> torch.Tensor:
    """x W^T in a stated order: [T, N] float32."""
    name, _, number = order.partition(":")
    if name == "float64":
        return (x_TK.double() @ weight_NK.double().t()).float()
    x_TK, weight_NK = x_TK.float(), weight_NK.float()
    if name == "float32":
        return F.linear(x_TK, weight_NK)
    size = x_TK.shape[-1]
    width = int(number) if name == "blocks" else -(-size // int(number))
    total: torch.Tensor | None = None
    for start in range(0, size, width):
        part = x_TK[:, start : start + width] @ weight_NK[:, start : start + width].t()
        part = part.to(torch.bfloat16).float() if name == "rounded" else part
        total = part if total is None else total + part
    assert total is not None, "K is at least one"
    return total


def spread(bias_N: torch.Tensor, columns_N: torch.Tensor, size: int) -> torch.Tensor:
    """The bias [M] of a merged weight, zero where it is another part's."""
    return torch.zeros(size, dtype=bias_N.dtype, device=bias_N.device).index_copy(0, columns_N, bias_N)


def run(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """[T, N] in the output dtype."""
    out, precision = seen.rollout.dtype, pick.get("factors", "given")
    x_TK, weight_NK = factor(seen["x"], precision), factor(seen["weight"], precision)
    how = pick.get("bias", "none") if seen.has("bias") else "none"
    order = pick["order"]
    own = order in ("native", "merged", "rows", *GROUPS)
    if order.startswith("merged"):
        merged_MK, columns_N = factor(seen["merged"], precision), seen["columns"]
        bias_M = None if how != "accumulator" else spread(seen["bias"].to(x_TK.dtype), columns_N, len(merged_MK))
        y_TN = native(seen, x_TK, merged_MK, bias_M, order)[:, columns_N]
    elif own:
        bias_N = seen["bias"].to(x_TK.dtype) if how == "accumulator" else None
        y_TN = native(seen, x_TK, weight_NK, bias_N, order)
    else:
        y_TN = product(x_TK, weight_NK, order)
    if own and how == "accumulator":
        return y_TN.to(out)
    if how == "accumulator":
        y_TN = y_TN.float() + seen["bias"].float()
    y_TN = y_TN.to(torch.bfloat16).to(out) if pick.get("output") == "bf16" else y_TN.to(out)
    return y_TN + seen["bias"].to(out) if how == "rounded" else y_TN


LINEAR = Arithmetic("linear", ("x", "sequence", "pass"), settings, run)
