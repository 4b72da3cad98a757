"""Which switches are made ready ahead: those that can act on this machine, in the order of the table."""

from __future__ import annotations

import pytest

from samebits.tools.diff import triggers

ATTENTION = ["VLLM_CPU_ATTN_SPLIT_KV", "SAMEBITS_CPU_ATTN_PIECES"]


@pytest.mark.parametrize(("amx", "variables"), [(True, ["ONEDNN_MAX_CPU_ISA", *ATTENTION]), (False, ATTENTION)])
def test_without_amx_its_switch_is_not_made_ready(
    amx: bool, variables: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: amx)
    assert [trigger.variable for trigger in triggers.likely("cpu")] == variables
    assert "ONEDNN_MAX_CPU_ISA" in [trigger.variable for trigger in triggers.for_kind("linear", "cpu")]
