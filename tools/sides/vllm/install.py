"""Wraps the hooks of the runner that a worker uses. Each wrapper does nothing while the worker's control is idle.

Legend: R head rows of a pass, V vocabulary.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from samebits.tools.sides.vllm import hooks, rowmap_v1, rowmap_v2
from samebits.tools.sides.vllm.control import CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "_samebits_wrapped"


def wrap(owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method by `make(method)`, once."""
    method = getattr(owner, name)
    if getattr(method, MARK, False):
        return
    wrapper = functools.wraps(method)(make(method))
    setattr(wrapper, MARK, True)
    setattr(owner, name, wrapper)


def runner_of(worker: Any) -> hooks.Runner:
    """Which model runner this worker has."""
    return (
        "MRV2"
        if type(worker.model_runner).__module__.startswith(("vllm.v1.worker.gpu.", "vllm.v1.worker.cpu."))
        else "V1"
    )


def install(worker: Any) -> None:
    """Check the hook table for this worker's runner and wrap what a pass goes through."""
    runner = runner_of(worker)
    hooks.check(runner)
    if runner == "V1":
        _install_v1()
    else:
        _install_v2()


def _ends_pass(method: Callable[..., Any]) -> Callable[..., Any]:
    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        CONTROL.end_pass()
        return result

    return sample_tokens


def _forces_ids(method: Callable[..., Any]) -> Callable[..., Any]:
    def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        sampled, processed = method(self, *args, **kwargs)
        return CONTROL.sampled(sampled), processed

    return sample


def _records_logprobs(method: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, logits: Any, *args: Any, **kwargs: Any) -> Any:
        # The sampler scales and masks logits in place.
        kept_RV = logits.clone() if CONTROL.wants_logprobs else None
        output = method(self, logits, *args, **kwargs)
        if kept_RV is not None and output.logprobs_tensors is not None:
            CONTROL.logprobs(kept_RV, output.logprobs_tensors.logprobs[:, 0])
        return output

    return forward


def _install_v1() -> None:
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    def begins_pass(method: Callable[..., Any]) -> Callable[..., Any]:
        def _model_forward(self: Any, input_ids: Any = None, positions: Any = None, *args: Any, **kwargs: Any) -> Any:
            if CONTROL.rows is not None:
                CONTROL.begin_pass(rowmap_v1.read(self, input_ids, positions), rowmap_v1.metadata())
            return method(self, input_ids, positions, *args, **kwargs)

        return _model_forward

    wrap(GPUModelRunner, "_model_forward", begins_pass)
    wrap(GPUModelRunner, "sample_tokens", _ends_pass)
    wrap(Sampler, "sample", _forces_ids)
    wrap(Sampler, "forward", _records_logprobs)


def _install_v2() -> None:
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    def begins_pass(method: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
            batch = method(self, *args, **kwargs)
            if CONTROL.rows is not None:
                CONTROL.begin_pass(rowmap_v2.read(self, batch), None)
            return batch

        return prepare_inputs

    wrap(GPUModelRunner, "prepare_inputs", begins_pass)
    wrap(GPUModelRunner, "sample_tokens", _ends_pass)
    wrap(Sampler, "sample", _forces_ids)
    wrap(Sampler, "__call__", _records_logprobs)
