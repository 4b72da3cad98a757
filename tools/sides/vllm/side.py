"""vLLM as a side: the real engine, in this process, asked through its own request interface.

Legend: N sampled tokens in all.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Rollout
from samebits.tools.sides.protocol import RolloutData, Scores, Sequence, Side
from samebits.tools.sides.vllm import control, engine, hooks, kernels, workload
from samebits.tools.sides.vllm.batch import request_id
from samebits.tools.sides.vllm.plugin import PluginRequest
from samebits.tools.sides.vllm.which_runner import runner_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samebits.tools.schema.artifacts.weights import SideModules, SideWeights
    from samebits.tools.schema.experiment import Workload
    from samebits.tools.schema.passes import How, Open
    from samebits.tools.schema.sites import CapturePlan, Edit

SEED_STRIDE = 1_000_003
"""Request i of a workload samples with seed * SEED_STRIDE + i."""


@dataclass(slots=True)
class VllmSide(Side):
    """A running engine."""

    config: Rollout
    model: Path
    device: str
    llm: Any
    facts: dict[str, str | int | float | bool | None]
    lines: list[str]
    version: int = 0
    broken: str = ""

    @classmethod
    def load(cls, command: Open) -> VllmSide:
        """Start the engine.

        Raises:
            UserError: vLLM missing or not matching, a model it cannot load, settings it does not take.
        """
        from samebits.tools.sides.model_folder import check_model_folder, read_config
        from samebits.tools.sides.vllm.describe import describe

        assert isinstance(command.config, Rollout)
        installed = hooks.vllm_version()
        model = check_model_folder(command.model)
        foreseen = runner_for(installed, command.device, os.environ, read_config(model), command.config.engine)
        hooks.status(installed, foreseen)
        kernels.check(command.config.kernels)
        with kernels.refusals():
            llm = engine.start(command.config, str(model), PluginRequest(taps=command.taps))
        facts, lines = describe(llm, installed, command.config)
        if command.config.kernels == "samebits":
            lines += kernels.lines(llm)
        return cls(command.config, model, command.device, llm, facts, lines)

    def describe(self) -> tuple[dict[str, str | int | float | bool | None], list[str]]:
        """See Side."""
        return dict(self.facts), list(self.lines)

    def generate(self, workload_: Workload) -> RolloutData:
        """Sample `new_tokens` per prompt (the end token does not stop a sequence), each request with its own seed."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        hf = self.llm.llm_engine.model_config.hf_text_config
        special = {
            token
            for name in ("eos_token_id", "bos_token_id", "pad_token_id")
            if isinstance(token := getattr(hf, name, None), int)
        }
        prompts = workload.prompts(workload_, self.model, int(hf.vocab_size), special)
        self._check_lengths([len(prompt) + workload_.new_tokens for prompt in prompts])
        greedy = workload_.temperature == 0
        requests = [
            engine.Request(
                request_id(index),
                prompt,
                SamplingParams(
                    max_tokens=workload_.new_tokens,
                    temperature=workload_.temperature,
                    top_p=workload_.top_p,
                    top_k=workload_.top_k or -1,
                    seed=None if greedy else (workload_.seed * SEED_STRIDE + index) % (1 << 31),
                    logprobs=0,
                    detokenize=False,
                    ignore_eos=True,
                    output_kind=RequestOutputKind.FINAL_ONLY,
                ),
            )
            for index, prompt in enumerate(prompts)
        ]
        engine.reset_cache(self.llm)
        with self._watched():
            done = engine.drive(self.llm, requests, None, whole_prompts=self.device == "cpu" and not greedy)
        outputs = [done[request.name] for request in requests]
        logprobs = [value for output in outputs for value in engine.sampled_logprobs(output)]
        return RolloutData(
            [
                Sequence(prompt, list(output.outputs[0].token_ids))
                for prompt, output in zip(prompts, outputs, strict=True)
            ],
            torch.tensor(logprobs, dtype=torch.float32),
            torch.ones(len(logprobs), dtype=torch.bool),
            workload_.temperature,
            workload_.top_p,
            workload_.top_k,
            self.config.logprobs,
            self.version,
        )

    def score(
        self, data: RolloutData, how: How, plan: CapturePlan | None, edits: tuple[Edit, ...], folder: Path
    ) -> Scores:
        """Teacher-forced: the engine runs as when it samples; each stored id is put in the place of the drawn one."""
        from samebits.tools.sides.vllm.scoring import score

        self._check_lengths([len(sequence.prompt) + len(sequence.sampled) for sequence in data.sequences])
        with self._watched():
            return score(self, data, how, plan, edits, folder)

    def weights(self) -> SideWeights:
        """See Side; packed weights are read back through the operators that use them."""
        from samebits.tools.sides.vllm import weights

        return cast("SideWeights", self.worker(weights.read_back))

    def modules(self) -> SideModules:
        """See Side."""
        from vllm import SamplingParams

        from samebits.tools.sides.vllm import weights

        self.worker(weights.watch_modules)
        params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, ignore_eos=True)
        with self._watched():
            engine.drive(self.llm, [engine.Request(request_id(-1), [0, 0], params)], None)
        return cast("SideModules", self.worker(weights.modules))

    def push(self, weights: Path, version: int, repair: bool, *, reset: bool = True) -> list[str]:
        """See Side."""
        from samebits.tools.sides.vllm.push import push

        lines = push(self, weights, repair, reset=reset)
        self.version = version
        return lines

    def worker(self, function: Any, *args: Any) -> Any:
        """Call `function(worker, *args)` in every worker process; the first worker's answer."""
        return self.llm.collective_rpc(function, args=args)[0]

    def _check_lengths(self, lengths: list[int]) -> None:
        longest = max(lengths)
        if longest > self.config.max_model_len:
            raise UserError(
                f"a sequence of {longest} tokens",
                f"is longer than [rollout] max_model_len = {self.config.max_model_len}",
                "drop the sequence or raise rollout.max_model_len",
            )

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """After an exception inside a pass the engine's state is unknown: say so instead of going on with it."""
        if self.broken:
            raise UserError(
                "the vLLM engine", f"was interrupted in an earlier pass ({self.broken})", "open the side again"
            )
        try:
            yield
        except UserError:
            raise
        except BaseException as error:
            self.broken = f"{type(error).__name__}: {error}"
            raise

    def close(self) -> None:
        """End the engine and its workers."""
        self.worker(control.stop)
        self.llm = None
