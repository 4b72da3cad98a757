"""Logprobs by samebits' operator in vLLM's two samplers. Which token is sampled stays vLLM's business.

Legend: M rows of a pass that sample, V vocabulary, C columns of token ids per row.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.ops.logprob.op import direct

KNOWN = "samebits_plain"
"""Attribute of the sampling states: rows of a step, and whether they are plain; asked once per step."""


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """logits [M, V], token_ids [M, C] -> float32 [M, C], nats."""
    ids_MC = token_ids.to(torch.int64)
    if ids_MC.shape[1] == 1:
        return direct(logits, ids_MC[:, 0])[:, None]
    return torch.stack([direct(logits, ids_M) for ids_M in ids_MC.unbind(1)], 1)


def put(runner: Any) -> str:
    """Put the operator into the runner's sampler; which one it is.

    Raises:
        PatchError: a sampler that is neither of the two.
    """
    sampler = runner.sampler
    if type(sampler).__module__ == "vllm.v1.sample.sampler":
        return _first(sampler)
    if type(sampler).__module__ == "vllm.v1.worker.gpu.sample.sampler":
        return _second(sampler)
    raise PatchError(f"the sampler {type(sampler).__name__}", "is not known", "use a model with vLLM's own sampler")


def _first(sampler: Any) -> str:
    """The V1 runner's: it takes logprobs of the whole vocabulary and gathers; ours keeps the logits until then."""
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.sample.sampler import Sampler

    class SamebitsSampler(Sampler):
        """samebits::logprob in place of log_softmax."""

        @staticmethod
        def compute_logprobs(logits: torch.Tensor) -> torch.Tensor:
            """The logits themselves, in float32 and out of the way of what the sampler writes into them."""
            return logits.to(torch.float32, copy=True)

        @staticmethod
        def gather_logprobs(logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> Any:
            """See Sampler.gather_logprobs; `logprobs` are logits here."""
            best = torch.topk(logprobs, num_logprobs, dim=-1).indices
            ids = torch.cat([token_ids[:, None], best], 1)
            chosen = logprobs.gather(1, token_ids[:, None])
            rank = (logprobs >= chosen).sum(-1)
            return LogprobsTensors(ids.to(torch.int32), token_logprobs(logprobs, ids), rank)

        def gather_specific_token_logprobs(
            self, logprobs: torch.Tensor, logprob_token_ids: dict[int, list[int]], sampled: torch.Tensor
        ) -> Any:
            """Not covered."""
            raise PatchError("logprob_token_ids", "is not covered by samebits' sampler", "leave it out")

        def forward(self, logits: torch.Tensor, sampling_metadata: Any, *args: Any, **kwargs: Any) -> Any:
            """See Sampler.forward."""
            if sampling_metadata.max_num_logprobs == -1:
                raise PatchError("logprobs = -1", "is not covered by samebits' sampler", "name a number of logprobs")
            return super().forward(logits, sampling_metadata, *args, **kwargs)

    if sampler.logprobs_mode not in ("raw_logprobs", "processed_logprobs"):
        raise PatchError(f"logprobs_mode = {sampler.logprobs_mode!r}", "gives no logprobs", "use processed_logprobs")
    sampler.__class__ = SamebitsSampler
    if sampler.logprobs_mode == "processed_logprobs":
        sampler.topk_topp_sampler.logprobs_mode = "processed_logits"
    return "V1 sampler: log_softmax -> samebits::logprob"


def _second(sampler: Any) -> str:
    """Model Runner V2's: one function gives the logprobs of chosen tokens."""
    from vllm.v1.worker.gpu.sample import logprob as module
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    class SamebitsSampler(Sampler):
        """Logits in float32 where a temperature is applied: vLLM rounds what it divides to the dtype of the logits."""

        def __call__(self, logits: torch.Tensor, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
            """See Sampler.__call__."""
            states, rows = self.sampling_states, input_batch.idx_mapping_np
            plain = _plain(states, rows)
            setattr(states, KNOWN, (rows, plain))
            if not plain:
                logits = logits.to(torch.float32, copy=True)
            return super().__call__(logits, input_batch, *args, **kwargs)

    if sampler.logprobs_mode not in ("raw_logprobs", "processed_logprobs"):
        raise PatchError(f"logprobs_mode = {sampler.logprobs_mode!r}", "gives no logprobs", "use processed_logprobs")
    sampler.__class__ = SamebitsSampler
    sampler.sampling_states.apply_temperature = types.MethodType(divide, sampler.sampling_states)
    module.compute_token_logprobs = functools.wraps(module.compute_token_logprobs)(token_logprobs)
    return "Model Runner V2's sampler: compute_token_logprobs -> samebits::logprob"


def _plain(states: Any, rows: Any) -> bool:
    """Whether every row is greedy or has temperature 1."""
    given = states.temperature.np[rows]
    return bool(((given == 0.0) | (given == 1.0)).all())


def divide(states: Any, logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, idx_mapping_np: Any) -> None:
    """SamplingStates.apply_temperature with a correctly rounded division, as in the operator's own temperature."""
    rows, plain = getattr(states, KNOWN, (None, False))
    if rows is not idx_mapping_np:
        plain = _plain(states, idx_mapping_np)
    if not plain:
        given = states.temperature.gpu[expanded_idx_mapping].float()
        logits.div_(torch.where(given == 0.0, 1.0, given)[:, None])
