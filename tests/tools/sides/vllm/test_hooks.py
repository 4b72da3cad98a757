"""The hook table matches the installed vLLM, and a row that does not is named."""

from __future__ import annotations

import dataclasses

import pytest

from samebits.tools.schema.errors import UserError
from samebits.tools.sides.vllm import hooks

pytestmark = pytest.mark.vllm


def test_every_row_of_the_v1_runner_matches_here() -> None:
    lines = hooks.check("V1")
    assert len(lines) == sum(hook.runner in ("any", "V1") for hook in hooks.TABLE)


def test_a_renamed_method_is_named() -> None:
    hook = next(hook for hook in hooks.TABLE if hook.name == "Sampler.sample")
    gone = dataclasses.replace(hook, name="Sampler.sample_tokens_v9")
    with pytest.raises(UserError, match=r"Sampler\.sample_tokens_v9.*not there"):
        hooks.check("V1", (*hooks.TABLE, gone))


def test_a_changed_parameter_is_named() -> None:
    hook = next(hook for hook in hooks.TABLE if hook.name == "Sampler.sample")
    changed = dataclasses.replace(hook, parameters=("sampling_metadata", "logits"))
    with pytest.raises(UserError, match=r"its parameters are now \(logits, sampling_metadata"):
        hooks.check("V1", (changed,))


def test_a_broken_chain_of_attributes_is_named() -> None:
    with pytest.raises(UserError, match=r"runner\.kv_caches.*object has no 'kv_caches'"):
        hooks.check_held("V1", {"runner": object()})


@pytest.mark.parametrize(
    ("version", "runner", "said"),
    [
        ("0.32.0", "V1", "tested"),
        ("0.32.0", "MRV2", "hooks match, not run"),
        ("0.33.1", "V1", "hooks match, not run"),
        ("0.25.0", "V1", "hooks match, not run"),
    ],
)
def test_versions_inside_the_range_are_told_apart(version: str, runner: hooks.Runner, said: str) -> None:
    assert hooks.status(version, runner) == said


@pytest.mark.parametrize("version", ["0.24.9", "0.34.0", "1.0.0", "dev"])
def test_versions_outside_the_range_are_refused(version: str) -> None:
    with pytest.raises(UserError, match=r"0\.25 to 0\.33"):
        hooks.status(version, "V1")
