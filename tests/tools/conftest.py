"""Tiny models and sides in this process, shared by the tests of sides and measure."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from samebits.tools.sides.transformers.side import TransformersSide

SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}
SHARPER = 25.0
"""Random heads give nearly uniform logits, at which temperature and top-p hardly show: the head is scaled up."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """models(family="qwen3", dtype="float32", seed=0): a tiny model folder, made once per session."""
    made: dict[tuple[str, str, int], Path] = {}

    def model(family: str = "qwen3", dtype: str = "float32", seed: int = 0) -> Path:
        from safetensors.torch import load_file, save_file

        from samebits.tools.sides.transformers.tiny import write_tiny

        key = (family, dtype, seed)
        if key not in made:
            folder = tmp_path_factory.mktemp(f"{family}-{dtype}-{seed}")
            write_tiny(folder, family, dtype, seed, **SIZES)  # type: ignore[arg-type]
            weights = load_file(folder / "model.safetensors")
            if "lm_head.weight" in weights:
                weights["lm_head.weight"] *= SHARPER
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
            made[key] = folder
        return made[key]

    return model


@pytest.fixture(scope="session")
def open_side() -> Callable[..., TransformersSide]:
    """open_side("trainer", folder, **config): a TransformersSide in this process."""

    def side(role: str, folder: Path, **config: Any) -> TransformersSide:
        from samebits.tools.schema.experiment import Rollout, Trainer
        from samebits.tools.schema.passes import Open
        from samebits.tools.sides.transformers.side import TransformersSide

        kind = Rollout if role == "rollout" else Trainer
        settings = kind(**({"side": "transformers", "model": str(folder), "dtype": "float32"} | config))
        return TransformersSide.load(
            Open.model_validate({"role": role, "config": settings, "model": str(folder), "device": "cpu"})
        )

    return side


@dataclass
class InProcess:
    """A session whose side lives in this process: the same commands, the same replies, no pipe (the pipe has its own
    tests).
    """

    side: Any
    opened: Any

    def ask(self, command: Any) -> Any:
        """Like Session.ask, errors raised as they are."""
        from samebits.tools.sides.child import carry_out

        self.side, done = carry_out(self.side, command)
        return done

    def stop(self) -> None:
        """Like Session.stop."""
        self.side.close()

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextmanager
def _patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from samebits.tools.job.job import Job
    from samebits.tools.schema.passes import Open
    from samebits.tools.sides.child import carry_out

    def open_here(_job: Job, role: Any, experiment: Any, **_: Any) -> InProcess:
        config = experiment.rollout if role == "rollout" else experiment.trainer
        model = experiment.rollout.model if role == "rollout" else experiment.trainer_model
        side, done = carry_out(None, Open(role=role, config=config, model=model, device="cpu"))
        return InProcess(side, done)

    monkeypatch.setattr(Job, "open_side", open_here)
    monkeypatch.setattr(Job, "prepare", lambda *_, **__: None)
    yield


@pytest.fixture
def sides_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sides of jobs run in this process: importing torch and transformers once is enough."""
    with _patched(monkeypatch):
        yield
