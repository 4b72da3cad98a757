"""Another way to compute the same tokens, and the proof from a side's own facts that it took effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.schema.passes import How
    from samebits.tools.sides.protocol import Scores

    Proof = Callable[[Scores, Scores], str]

LACKS = "this side has no such thing"


@dataclass(slots=True, frozen=True)
class Variant:
    """Another way, compared with the plain way of the side."""

    how: How
    words: str
    trigger: str
    proof: Proof
    """Given the plain scores and the variant's: "" when it took effect, else why not."""


def always(_plain: Scores, _other: Scores) -> str:
    """For a way that cannot fail to take effect."""
    return ""


def company(plain: Scores, other: Scores) -> str:
    """The largest batch differs."""
    a, b = plain.facts.get("largest_batch"), other.facts.get("largest_batch")
    return "" if a != b else f"the largest batch was {a} both times"


def some(fact: str, what: str) -> Proof:
    """A count among the facts is above zero; `what` says what zero means."""

    def proof(_plain: Scores, other: Scores) -> str:
        count = other.facts.get(fact)
        return "" if isinstance(count, int | float) and count > 0 else f"{what}: {fact} is {count}"

    return proof


def path(plain: Scores, other: Scores) -> str:
    """The number of forward passes differs, or that of the requests to an engine (long prefills can fill as many passes
    as there are decode steps)."""
    a, b = plain.facts.get("passes"), other.facts.get("passes")
    asked = plain.facts.get("requests") != other.facts.get("requests")
    return "" if a != b or asked else f"both ways took {a} forward passes"


COUNTED = {"chunked_prefill": "chunked_prefills", "prefix_hit": "prefix_hit_tokens"}
"""The fact in which a side counts what a way switches on; a side without the fact has no such thing."""
ROLLOUT_PROOFS: dict[str, Proof] = {
    "repeat": always,
    "batch": company,
    "decode_prefill": path,
    "chunked_prefill": some(COUNTED["chunked_prefill"], "no prefill was cut"),
    "prefix_hit": some(COUNTED["prefix_hit"], "no prompt holds a whole cached block"),
}
"""What shows that a way of the rollout side took effect."""


def lacks(name: str, plain: Scores) -> bool:
    """Whether the rollout side has no such thing as this way switches: its scores do not count it."""
    return name in COUNTED and COUNTED[name] not in plain.facts


def not_taken(name: str, plain: Scores, other: Scores) -> str:
    """Why a way of the rollout side took no effect; "" when it did."""
    return LACKS if lacks(name, plain) else ROLLOUT_PROOFS[name](plain, other)
