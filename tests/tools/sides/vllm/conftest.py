"""Engines on tiny models, each in its own process, without AMX and the KV split (both vary with the company)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from samebits.tools.schema.experiment import Experiment, Rollout
from samebits.tools.sides.session import Session
from samebits.tools.sides.transformers.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STEADY = {"VLLM_CPU_ATTN_SPLIT_KV": "0", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
Start = "Callable[..., Session]"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for this module's artifacts."""
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def start(place: Path) -> Iterator[Callable[..., Session]]:
    """Start the module's engine: `start("qwen3", eager=True, ...)`."""
    sessions: list[Session] = []

    def begin(family: Any = "qwen3", *, taps: bool = False, **settings: Any) -> Session:
        model = place / f"model-{family}"
        if not model.exists():
            write_tiny(model, family)
        rollout = Rollout(**({"model": str(model), "eager": True, "max_model_len": 512, "env": STEADY} | settings))
        session = Session.start("rollout", Experiment(device="cpu", rollout=rollout), "cpu", place, taps=taps)
        sessions.append(session)
        return session

    yield begin
    for session in sessions:
        session.stop()
