"""The plugin is inert unless a request file is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.tools.schema.errors import UserError
from samebits.tools.sides.vllm.plugin import VARIABLE, PluginRequest, read

INERT = """
import sys
from samebits.tools.sides.vllm.plugin import register
register()
print("vllm" in sys.modules, "torch" in sys.modules)
"""


def test_without_a_request_it_loads_nothing() -> None:
    env = {key: value for key, value in os.environ.items() if key != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", INERT], env=env, capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.split() == ["False", "False"]


def test_a_request_is_followed(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(PluginRequest(taps=True).model_dump_json(), encoding="utf-8")
    assert read(tmp_path / "request.json").taps


@pytest.mark.parametrize("text", ["", "{", '{"unknown": 1}'])
def test_a_damaged_request_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "request.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="not a samebits request file"):
        read(tmp_path / "request.json")
