"""What is known of each model family: exact, measured, not yet run, or refused, by dtype and phase.

Built from the role lists, the limits of the tables and recorded.toml; loads neither torch nor vLLM. `inspect` answers
by it and docs/support.md is its page: `python -m samebits.kernels.adapters.tables.support > docs/support.md`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables.limits import LIMITS, Device
from samebits.kernels.adapters.transformers.roles import FAMILIES, family_of

Status = Literal["exact", "measured", "not yet", "refused"]
PHASES = {
    "decode": "what decoding reported, against the trainer's forward of the same tokens",
    "prefill": "one prefill per token, against decoding",
    "chunked": "prefills cut into chunks, against whole ones",
    "cached": "a warm prefix cache, against a cold one",
    "preempted": "sequences that were evicted and computed again, against an engine with room for all",
    "update": "decode against the trainer again, after each update pushed into the live engine",
}
NAMES = {"update": "after an update"}
WITHOUT_ROLES = ("Qwen2ForCausalLM", "NemotronHForCausalLM", "DeepseekV4ForCausalLM")
"""Classes that the documentation speaks of and that have no role list of their own."""
DTYPES = ("bfloat16", "float16", "float32")
RECORDED = Path(__file__).with_name("recorded.toml")
HEAD = """# What is supported

Made from the code: `python -m samebits.kernels.adapters.tables.support > docs/support.md`. `samebits inspect` (the tool
`inspect_setup`) answers the same for your model.

- **exact**: run, and no token of the number given had other bits.
- **measured**: run, and some tokens differed.
- **not yet**: nothing was run. It may work; measure it.
- **refused**: the patch engine raises at start-up, with the reason. `measure` and `diff` still work with the stock
  trainer (`trainer.kernels = "none"`).

The class is the architecture in config.json, the table is `trainer.kernels`. Conditions of each exact figure:
[exact-zero.md](exact-zero.md), [kernels-in-vllm.md](kernels-in-vllm.md). All figures are of models with random
weights; none is of a real checkpoint.
"""


@dataclass(slots=True, frozen=True)
class Phase:
    """One phase of one family, dtype and table."""

    status: Status
    said: str
    """The status with its number of tokens, or its reason."""


@dataclass(slots=True, frozen=True)
class Row:
    """All phases of one family under one table."""

    family: str
    table: str
    device: Device
    dtype: str
    phases: dict[str, Phase]
    engine: str = ""
    """Of the runs; empty: none."""
    model: str = ""
    pages: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class Run:
    """One entry of recorded.toml."""

    families: list[str]
    table: str
    device: Device
    dtype: str
    engine: str
    model: str
    page: str
    test: str
    quotes: list[str]
    phases: dict[str, dict[str, int]]


@cache
def runs() -> tuple[Run, ...]:
    """Everything recorded."""
    entries: list[dict[str, Any]] = tomllib.loads(RECORDED.read_text(encoding="utf-8"))["run"]
    return tuple(Run(**entry) for entry in entries)


def refusal(family: str, table: str, device: Device, dtype: str) -> PatchError | None:
    """Why this table refuses the family, as the patch engine would say it; None: it does not."""
    try:
        roles = family_of(family).roles
        if (limit := LIMITS.get((table, device))) is not None:
            limit.check(dtype, experts=any(role.kind == "experts" for role in roles))
    except PatchError as error:
        return error
    return None


def row(family: str, table: str, device: Device, dtype: str) -> Row:
    """What is known of one family under one table ("none": the stock trainer)."""
    if table != "none" and (error := refusal(family, table, device, dtype)) is not None:
        said = f"refused: {error.thing} {error.reason}"
        return Row(family, table, device, dtype, dict.fromkeys(PHASES, Phase("refused", said)))
    found: dict[str, Phase] = {}
    told = [
        run for run in runs() if family in run.families and (run.table, run.device, run.dtype) == (table, device, dtype)
    ]
    for run in told:
        found |= {name: _phase(**figures) for name, figures in run.phases.items()}
    phases = {name: found.get(name, Phase("not yet", "not yet")) for name in PHASES}
    pages = tuple(dict.fromkeys(run.page for run in told))
    return Row(
        family,
        table,
        device,
        dtype,
        phases,
        ", ".join(sorted({run.engine for run in told})),
        ", ".join(sorted({run.model for run in told})),
        pages,
    )


def _phase(tokens: int, differ: int) -> Phase:
    assert 0 <= differ <= tokens
    assert tokens > 0
    if differ:
        return Phase("measured", f"measured: {differ} of {tokens} differ")
    return Phase("exact", f"exact ({tokens})")


def rows() -> Iterator[Row]:
    """Every row of the page: known families by table, device and dtype."""
    for table, device in (*LIMITS, ("none", "cpu")):
        for family in (*(family.stands for family in FAMILIES), *WITHOUT_ROLES):
            known = any(family == each.stands for each in FAMILIES)
            for dtype in DTYPES if known else DTYPES[:1]:
                yield row(family, table, device, dtype)


def in_words(found: Row, engine: str = "") -> str:
    """One sentence about one row.

    Args:
        engine: the one installed here, as "vllm 0.33.0"; figures of another one are said to be of that one.
    """
    head = f'{found.family} {found.dtype} on {found.device}, kernels "{found.table}": '
    first = next(iter(found.phases.values()))
    if first.status == "refused":
        return head + first.said
    parts = [
        f"{NAMES.get(name, name)} {phase.said}" for name, phase in found.phases.items() if phase.status != "not yet"
    ]
    if not parts:
        return head + "not yet run"
    absent = [NAMES.get(name, name) for name, phase in found.phases.items() if phase.status == "not yet"]
    text = f"{head}{', '.join(parts)}" + (f"; not yet: {', '.join(absent)}" if absent else "")
    text += f" ({ran_on(found)})"
    return text + (f"; not yet on {engine}, which is installed" if engine and engine != found.engine else "")


def ran_on(found: Row) -> str:
    """Engine and model of the runs; empty: none."""
    return f"{found.engine}, {found.model}" if found.engine else ""


def page() -> str:
    """docs/support.md."""
    parts = [HEAD]
    for table, device in LIMITS:
        parts += _section(table, device)
    parts += ["## The stock trainer, CPU engine\n", "| class | dtype | decode | run on |", "|---" * 4 + "|"]
    parts += [
        f"| {found.family} | {found.dtype} | {found.phases['decode'].said} | {ran_on(found)} |"
        for found in rows()
        if found.table == "none"
    ]
    parts.append("\n## Phases\n")
    parts += [f"- **{NAMES.get(name, name)}**: {meaning}." for name, meaning in PHASES.items()]
    pages = sorted({run.page.removeprefix("docs/") for run in runs()})
    links = ", ".join(f"[{name}]({name})" for name in pages)
    parts.append(f"\nWhere the figures come from: {links}; the entries are in kernels/adapters/tables/recorded.toml.")
    return "\n".join(parts) + "\n"


def _section(table: str, device: Device) -> list[str]:
    """One table of operators on one device: a row for what can be patched, a line for what is refused."""
    parts = [f'## `trainer.kernels = "{table}"`, {"CPU engine" if device == "cpu" else "CUDA"}\n']
    parts.append("| class | dtype | " + " | ".join(NAMES.get(name, name) for name in PHASES) + " | run on |")
    parts.append("|---" * (len(PHASES) + 3) + "|")
    refused: dict[str, list[str]] = {}
    for found in rows():
        if (found.table, found.device) != (table, device):
            continue
        said = [phase.said for phase in found.phases.values()]
        if found.phases["decode"].status == "refused":
            reason = said[0].removeprefix("refused: ").partition(" (known:")[0]
            refused.setdefault(reason, []).append(found.family)
        else:
            parts.append(f"| {found.family} | {found.dtype} | {' | '.join(said)} | {ran_on(found)} |")
    parts.append("\nRefused:\n")
    parts += [
        f"- {reason}" + ("" if reason.startswith("model class") else f": {', '.join(dict.fromkeys(classes))}")
        for reason, classes in refused.items()
    ]
    return [*parts, ""]


if __name__ == "__main__":
    print(page(), end="")
