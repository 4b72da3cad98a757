"""The prompts that should and should not open the skill: their form, what an agent did with each when it was asked
(recorded, not asked again here), and that they try the description's own words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = json.loads((ROOT / "skill/evals/triggers.json").read_text())
DESCRIPTION = " ".join(
    (ROOT / "SKILL.md").read_text().partition("description: >-\n")[2].partition("\nlicense:")[0].split()
)
TIMES = 3
"""How often each prompt was put to an agent."""
NEAR = re.compile(
    r"vllm|logprob|kl\b|rl\b|rlhf|ppo|grpo|triton|kernel|bf16|temperature|quantis|nvfp4|trainer|rollout", re.I
)


def parts() -> tuple[str, str]:
    """What the description is for, and what it is not for."""
    wanted, _, unwanted = DESCRIPTION.partition("Not for:")
    return wanted.partition("Use for:")[2], unwanted


def faults(data: dict[str, Any]) -> list[str]:
    """What is wrong with a file of prompts."""
    wanted, unwanted = parts()
    prompts = data["prompts"]
    found = [f"a {name} twice" for name in ("id", "prompt") if len({entry[name] for entry in prompts}) < len(prompts)]
    for entry in prompts:
        if entry["clause"] not in (wanted if entry["should_trigger"] else unwanted):
            found.append(f"{entry['id']}: its clause is not in that part of the description")
        if "samebits" in entry["prompt"].lower():
            found.append(f"{entry['id']}: nobody who needs it knows the name")
        if not entry["should_trigger"] and not NEAR.search(entry["prompt"]):
            found.append(f"{entry['id']}: not a near miss")
        if entry["opened"] != (TIMES if entry["should_trigger"] else 0):
            found.append(f"{entry['id']}: opened {entry['opened']} of {TIMES} times")
    return found


def test_the_prompts_keep_their_form() -> None:
    assert faults(DATA) == []
    for wanted in (True, False):
        assert sum(entry["should_trigger"] is wanted for entry in DATA["prompts"]) >= 12


def test_every_clause_of_the_description_has_a_prompt() -> None:
    for wanted, text in zip((True, False), parts(), strict=True):
        left = text
        for clause in sorted(
            {entry["clause"] for entry in DATA["prompts"] if entry["should_trigger"] is wanted}, key=len
        ):
            assert clause in left
            left = left.replace(clause, "", 1)
        assert [part for part in re.split(r'[,.;:"]', left) if len(part.strip()) > 3] == [], "no prompt tries these"


def test_a_far_miss_a_foreign_clause_and_a_double_are_seen() -> None:
    broken = json.loads(json.dumps(DATA))
    first, last = broken["prompts"][0], broken["prompts"][-1]
    last["prompt"], last["clause"] = "Bake a cake", first["clause"]
    first["id"] = broken["prompts"][1]["id"]
    broken["prompts"][2]["opened"] = 2
    assert len(faults(broken)) == 4
