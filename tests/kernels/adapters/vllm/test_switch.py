"""What switches the operators on in vLLM, and what keeps a compiled graph of others away."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.vllm import switch

INERT = (
    "import sys; from samebits.tools.sides.vllm.plugin import register; register();"
    "heavy = ('vllm', 'torch', 'triton', 'samebits.kernels.ops', 'samebits.kernels.adapters.vllm.plugin');"
    "print(sorted(name for name in heavy if name in sys.modules))"
)


def test_the_plugin_loads_nothing_unless_the_environment_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SAMEBITS_KERNELS", "SAMEBITS_REQUEST"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, "-c", INERT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(switch.VARIABLE, "mine")
    with pytest.raises(PatchError, match="SAMEBITS_KERNELS=mine"):
        switch.asked()
    monkeypatch.setenv(switch.VARIABLE, "samebits")
    assert switch.asked()
    monkeypatch.delenv(switch.VARIABLE)
    assert not switch.asked()


def test_an_engine_config_without_the_digest_or_with_another_is_refused() -> None:
    given = switch.with_key({"mine": 1})
    assert given == {"mine": 1, switch.KEY: switch.digest()}
    switch.check_key(given)
    for wrong in ({}, {"mine": 1}, {switch.KEY: "0" * 16}, None):
        with pytest.raises(PatchError, match=switch.KEY):
            switch.check_key(wrong)
    with pytest.raises(PatchError, match="cannot take"):
        switch.with_key("text")


@pytest.mark.parametrize("changed", ["ops/linear/table_sm90.json", "ops/rms_norm/triton.py", "adapters/vllm/layers.py"])
def test_a_changed_table_kernel_or_layer_is_another_key(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in switch.SOURCES:
        source = switch.ROOT / name
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    monkeypatch.setattr(switch, "ROOT", tmp_path)
    before = switch.digest.__wrapped__()
    assert before == switch.digest()
    with (tmp_path / changed).open("a") as file:
        file.write("\n")
    assert switch.digest.__wrapped__() != before
