"""A live vLLM engine in a process of its own, and a trainer's model in this one.

Legend: L token rows of a packed pass, M scored rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from samebits.kernels.adapters.tables.operators import Operator
from samebits.kernels.adapters.transformers.checkpoint import checkpoint_tensors
from samebits.kernels.adapters.transformers.engine import Patched, patch
from samebits.kernels.adapters.transformers.roles import Family
from samebits.tools.schema.experiment import Experiment, Rollout, Workload
from samebits.tools.schema.passes import Generate, Push
from samebits.tools.sides import rollout_store
from samebits.tools.sides.protocol import RolloutData, Sequence
from samebits.tools.sides.session import Session

Table = str | Mapping[str, str | Operator]


def load(folder: Path, dtype: torch.dtype) -> Any:
    """The stock model."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


@dataclass(slots=True)
class Packed:
    """Sequences in one row: ids and positions [1, L]; rows and tokens [M]."""

    ids: torch.Tensor
    positions: torch.Tensor
    rows: torch.Tensor
    tokens: torch.Tensor

    @classmethod
    def of(cls, sequences: list[Sequence]) -> Packed:
        ids: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        tokens: list[int] = []
        for sequence in sequences:
            rows += [len(ids) + row for row in sequence.scored]
            tokens += sequence.sampled
            positions += range(len(sequence.tokens))
            ids += sequence.tokens
        return cls(torch.tensor([ids]), torch.tensor([positions]), torch.tensor(rows), torch.tensor(tokens))

    def logits(self, model: Any) -> torch.Tensor:
        """[M, V]."""
        out: torch.Tensor = model(
            input_ids=self.ids, position_ids=self.positions, use_cache=False, logits_to_keep=self.rows
        ).logits[0]
        return out

    def score(self, patched: Patched, temperature: float = 1.0) -> torch.Tensor:
        """[M], differentiable."""
        return patched.logprob(self.logits(patched.model), self.tokens, temperature)


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    """Tokens whose float32 bits are not the same; both must hold tokens."""
    assert a.numel() == b.numel() > 0
    assert bool(torch.cat([a, b]).isfinite().all())
    return int((a.detach().view(torch.int32) != b.detach().view(torch.int32)).sum())


@dataclass(slots=True)
class Live:
    """One engine on one model folder, and the trainer's copy of the model."""

    session: Session
    folder: Path
    work: Path
    dtype: torch.dtype
    families: tuple[Family, ...] = ()
    count: int = 0

    def load(self) -> Any:
        return load(self.folder, self.dtype)

    def rollout(self, workload: Workload) -> RolloutData:
        self.count += 1
        folder = self.work / f"rollout-{self.count}"
        self.session.ask(Generate(workload=workload, folder=str(folder)))
        return rollout_store.read(folder)

    def push(self, model: Any, *, repair: bool = True) -> tuple[str, ...]:
        self.count += 1
        file = self.work / f"weights-{self.count}.safetensors"
        save_file(checkpoint_tensors(model), file)
        lines = self.session.ask(Push(weights=str(file), version=self.count, repair=repair)).lines
        file.unlink()
        return lines

    def differing(self, data: RolloutData, model: Any, table: Table) -> int:
        """Tokens of the rollout that this table does not reproduce, all sequences packed into one row."""
        patched = patch(model, table, families=self.families)
        with torch.no_grad():
            found = differing(Packed.of(data.sequences).score(patched, data.temperature), data.logprob_N)
        patched.undo()
        return found


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Live]]:
    """Starts an engine on a model folder; ended after the module."""
    running: list[Session] = []

    def start(folder: Path, dtype: str, *, families: tuple[Family, ...] = ()) -> Live:
        for session in running:
            session.stop()
        running.clear()
        work = tmp_path_factory.mktemp("live")
        rollout = Rollout(
            model=str(folder),
            dtype=dtype,
            eager=True,
            max_model_len=512,
            env={"VLLM_CPU_ATTN_SPLIT_KV": "0"},
            engine={"max_num_batched_tokens": 8192},
        )
        running.append(Session.start("rollout", Experiment(device="cpu", rollout=rollout), "cpu", work))
        return Live(running[-1], folder, work, getattr(torch, dtype), families)

    yield start
    for session in running:
        session.stop()


@pytest.fixture(scope="session")
def packed() -> type[Packed]:
    return Packed


@pytest.fixture(scope="session")
def count_differing() -> Callable[[torch.Tensor, torch.Tensor], int]:
    return differing
