"""The engine as a training loop uses it: prompts and seeds in, tokens and logprobs out. Nothing in it is hooked.

Legend: N sampled tokens in all, K tokens of the head of the distribution at one position, M fed tokens of all
sequences, L routed layers, R experts per token.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.schema.errors import UserError
from samebits.tools.sides.protocol import RolloutData, Sequence
from samebits.tools.sides.vllm import engine, hooks, routing
from samebits.tools.sides.vllm import weights as worker_weights
from samebits.tools.sides.vllm.batch import request_id
from samebits.tools.sides.vllm.push import expected_views, missing
from samebits.tools.sides.vllm.which_runner import runner_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(slots=True)
class Head:
    """The most probable tokens of every position, as the engine reports them."""

    id_NK: torch.Tensor
    """int64."""
    logprob_NK: torch.Tensor
    """float32, nats."""


@dataclass(slots=True)
class Drawn:
    """One batch of answers."""

    data: RolloutData
    head: Head | None = None
    routing: Routing | None = None


@dataclass(slots=True)
class Routing:
    """The experts of every fed token."""

    id_MLR: torch.Tensor
    """int64; M: the fed tokens of every sequence one after the other."""
    source: str
    """In words."""


@dataclass(slots=True)
class LiveEngine:
    """A running engine in this process."""

    llm: Any
    device: str
    lines: tuple[str, ...]
    """What really runs: versions, runner, attention, eager or compiled."""
    version: int = 0
    """Of the weights it holds, as the loop counts them."""

    @classmethod
    def start(cls, model: Path, device: str, options: Mapping[str, Any]) -> LiveEngine:
        """Start it with exactly these arguments of vllm.LLM.

        Raises:
            UserError: vLLM missing or not matching, a model it cannot load, settings it does not take.
        """
        from samebits.tools.schema.experiment import Rollout
        from samebits.tools.sides.model_folder import check_model_folder, read_config
        from samebits.tools.sides.vllm.describe import describe

        installed = hooks.vllm_version()
        folder = check_model_folder(str(model))
        hooks.status(installed, runner_for(installed, device, os.environ, read_config(folder), options))
        llm = launch(str(folder), options)
        length = int(llm.llm_engine.model_config.max_model_len)
        config = Rollout(model=str(folder), eager=bool(options.get("enforce_eager", False)), max_model_len=length)
        return cls(llm, device, tuple(describe(llm, installed, config)[1]))

    def sample(
        self,
        prompts: list[list[int]],
        seeds: list[int],
        *,
        new_tokens: int,
        temperature: float,
        top: int = 0,
        routed: bool = False,
    ) -> Drawn:
        """One answer per prompt, each drawn with its own seed, ended by the model's end token or by `new_tokens`.

        Args:
            top: how many logprobs per position to return too; 0: none.
            routed: capture the experts of every token too (the engine must run eager and without prefix cache).

        Raises:
            UserError: a prompt that leaves no room for `new_tokens`; experts that could not be captured whole.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        limit = self.llm.llm_engine.model_config.max_model_len
        longest = max(len(prompt) for prompt in prompts) + new_tokens
        if longest > limit:
            raise UserError(
                f"a sequence of {longest} tokens",
                f"is longer than [rollout] max_model_len = {limit}",
                "raise max_model_len or lower [rl] digits",
            )
        requests = [
            engine.Request(
                request_id(index),
                prompt,
                SamplingParams(
                    max_tokens=new_tokens,
                    temperature=temperature,
                    seed=seed,
                    logprobs=top,
                    detokenize=False,
                    ignore_eos=True,
                    stop_token_ids=[end_token(self.llm)],
                    output_kind=RequestOutputKind.FINAL_ONLY,
                ),
            )
            for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
        ]
        layers = self.llm.collective_rpc(routing.watch, args=(prompts,))[0] if routed else 0
        done = engine.drive(self.llm, requests, None, whole_prompts=self.device == "cpu")
        outputs = [done[request.name] for request in requests]
        values = [value for output in outputs for value in engine.sampled_logprobs(output)]
        data = RolloutData(
            [Sequence(p, list(output.outputs[0].token_ids)) for p, output in zip(prompts, outputs, strict=True)],
            torch.tensor(values, dtype=torch.float32),
            torch.ones(len(values), dtype=torch.bool),
            temperature=temperature,
            weight_version=self.version,
        )
        drawn = Drawn(data, _head(outputs, top) if top else None)
        if routed:
            captured = routing.by_row(self.llm.collective_rpc(routing.noted)[0], data, layers)
            drawn.routing = Routing(captured, routing.same(captured, routing.returned(outputs)))
        return drawn

    def check_holds(self, state: Mapping[str, torch.Tensor], name: str) -> None:
        """Read every weight back and compare its bits with what was pushed.

        Args:
            state: under checkpoint names.
            name: of these weights, for the message.

        Raises:
            UserError: the engine holds others.
        """
        tied = bool(self.llm.llm_engine.model_config.hf_text_config.tie_word_embeddings)
        expected = expected_views(dict(state), tied=tied)
        lost = missing(expected, self.llm.collective_rpc(worker_weights.read_back)[0])
        if lost:
            raise UserError(
                name,
                f"did not arrive in the engine: {len(lost)} of {len(expected)} weights are others, first {lost[0]}",
                "start the run again from its last checkpoint; report this model",
            )


def launch(model: str, options: Mapping[str, Any]) -> Any:
    """A `vllm.LLM` as its user would make it.

    Raises:
        UserError: settings the engine does not take, a model it cannot load, an engine that dies on the way up.
    """
    import traceback

    from vllm import LLM

    try:
        return LLM(model, **options)
    except Exception as error:  # vLLM raises every kind for what it cannot run
        traceback.print_exc()
        raise engine.refusal(error, model) from error


def end_token(llm: Any) -> int:
    """The model's end token.

    Raises:
        UserError: its config names none.
    """
    found = getattr(llm.llm_engine.model_config.hf_text_config, "eos_token_id", None)
    if found is None:
        raise UserError("the model's config.json", "names no eos_token_id", "answers need an end: add it")
    return int(found[0] if isinstance(found, list) else found)


def _head(outputs: list[Any], top: int) -> Head:
    """The `top` best of every position. The sampled token is reported besides them when it is not one of them."""
    ids: list[list[int]] = []
    values: list[list[float]] = []
    for output in outputs:
        for step in output.outputs[0].logprobs:
            best = sorted((-entry.logprob, token) for token, entry in step.items())[:top]
            ids.append([token for _, token in best])
            values.append([-negative for negative, _ in best])
    return Head(torch.tensor(ids), torch.tensor(values, dtype=torch.float32))
