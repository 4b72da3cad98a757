"""`samebits capture rollout` of a compiled engine: digests from taps in its graph, and a refusal of what they cannot
give.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from samebits.tools.capture.verb import run_capture
from samebits.tools.job.job import Job
from samebits.tools.schema.artifacts.capture import CaptureManifest
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import CaptureRequest
from samebits.tools.sides.transformers.tiny import write_tiny
from samebits.tools.store import artifact

STEADY = {"VLLM_CPU_ATTN_SPLIT_KV": "0", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}


def asked(model: Path, capture: dict[str, str], side: str = "rollout", *, eager: bool = False) -> CaptureRequest:
    experiment = {
        "device": "cpu",
        "rollout": {"model": str(model), "eager": eager, "max_model_len": 256, "env": STEADY},
        "workload": {"prompts": 3, "prompt_tokens": (3, 40), "new_tokens": 4},
        "capture": capture,
    }
    return CaptureRequest.model_validate({"experiment": experiment, "side": side})


class Opened(Exception):
    """A side was started."""


@pytest.mark.parametrize("given", [{"level": "operator"}, {"store": "tensors"}])
def test_what_no_compiled_graph_gives_is_refused_before_an_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    def opened(*_: Any, **__: Any) -> None:
        raise Opened

    monkeypatch.setattr(Job, "open_side", opened)
    with pytest.raises(UserError, match="no hook runs inside a compiled graph") as caught:
        run_capture(asked(tmp_path, given), Job(tmp_path))
    assert "--set rollout.eager=true" in caught.value.next_step
    # The controls: an eager engine, the trainer beside a compiled engine, digests of modules.
    for request in (asked(tmp_path, given, eager=True), asked(tmp_path, given, "trainer"), asked(tmp_path, {})):
        with pytest.raises(Opened):
            run_capture(request, Job(tmp_path))


@pytest.mark.slow
@pytest.mark.vllm
def test_a_compiled_engine_is_captured_by_taps_that_move_no_bit(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "model", num_hidden_layers=2)
    manifests = {}
    for eager in (False, True):
        folder = tmp_path / f"eager-{eager}"
        folder.mkdir()
        result = run_capture(asked(model, {}, eager=eager), Job(folder))
        assert result.verdict == "done", result.summary
        manifests[eager] = artifact.read(folder / result.ids["capture"], CaptureManifest)
        assert manifests[eager].same_logprobs is True
    compiled, plain = manifests[False], manifests[True]
    inside = {str(tap.site) for tap in compiled.taps if tap.site.module.startswith("model.layers.")}
    assert {"model.layers.1.mlp.down_proj:in0", "model.layers.0.self_attn.attn:out0"} <= inside
    assert inside < {str(tap.site) for tap in plain.taps}
    never = [line for line in compiled.untapped if "never called as a module" in line]
    assert any(line.startswith("model.layers.0.input_layernorm:") for line in never), "inlined by the compiler"
    assert not any("input_layernorm" in line for line in plain.untapped)
