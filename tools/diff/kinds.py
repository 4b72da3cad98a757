"""What kind of operator a region is, told from the dispatcher operators that ran in it, not from names of modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = str

SIGNS: tuple[tuple[Kind, tuple[tuple[str, ...], ...]], ...] = (
    # A kind holds when for one of its rows every fragment is found in some operator's name. First match wins.
    ("logprob", (("log_softmax",), ("logsumexp",), ("exp", "log", "amax", "sum", "gather"))),
    ("router", (("topk", "softmax"), ("topk", "sigmoid"))),
    (
        "attention",
        (
            ("scaled_dot_product",),
            ("flash_attn",),
            ("attention",),
            ("softmax", "bmm"),
            ("softmax", "matmul"),
            ("softmax", "mm"),
        ),
    ),
    ("experts", (("topk", "mm"), ("index_add",), ("grouped_mm",), ("fused_moe",), ("histc", "mm"), ("one_hot", "mm"))),
    ("router", (("topk",),)),
    ("norm", (("rsqrt",), ("rms_norm",), ("layer_norm",))),
    ("rotary", (("rotary",), ("neg", "cat", "mul"))),
    ("activation", (("silu",), ("gelu",), ("sigmoid", "mul"), ("relu",))),
    ("embedding", (("embedding",),)),
    ("linear", (("addmm",), ("linear",), ("mm",), ("matmul",))),
    ("residual", (("add",),)),
)


def kind_of(operators: Iterable[str]) -> Kind:
    """Kind of a region from the names of the operators that ran in it ("region" when none fits)."""
    names = [name.lower() for name in operators]

    def holds(fragments: tuple[str, ...]) -> bool:
        return all(any(fragment in name for name in names) for fragment in fragments)

    for kind, rows in SIGNS:
        if any(holds(row) for row in rows):
            return kind
    return "region"
