"""Negative controls on a live engine whose KV cache is too small for its requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samebits.tools.schema.artifacts.capture import CaptureManifest
from samebits.tools.sides.transformers.tiny import write_tiny
from samebits.tools.store import artifact

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probe")


@pytest.fixture(scope="module")
def probed(folder: Path) -> dict[str, Any]:
    env = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_ATTN_SPLIT_KV": "0",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    model = write_tiny(folder / "model", "llama")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("probe.py")), str(model), str(folder)],
        env=env,
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def test_preempted_sequences_are_computed_again_to_the_same_bits(probed: dict[str, Any], folder: Path) -> None:
    assert probed["tight"]["recomputed_rows"] > 100
    assert probed["tight"]["differ"] == 0
    capture = artifact.read(folder / "capture", CaptureManifest)
    assert capture.recomputed > 100
    assert capture.missing == 0
    inside = [site for site in capture.recomputed_differing if "layers" in site or site.startswith("logprob")]
    assert inside == []


def test_without_forcing_other_tokens_come_out(probed: dict[str, Any]) -> None:
    assert probed["free"]["tokens_other_than_stored"] > 100
    assert probed["free"]["differ"] > 100
    assert probed["tight"]["tokens_other_than_stored"] == 0


def test_a_row_map_that_is_shifted_is_noticed(probed: dict[str, Any]) -> None:
    assert "the engine feeds" in probed["requests shifted by one"]
    assert "positions given to the model" in probed["starts one too late"]


def test_after_an_interrupted_pass_the_side_asks_to_be_opened_again(probed: dict[str, Any]) -> None:
    assert "open the side again" in probed["afterwards"]
