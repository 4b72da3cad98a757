"""What a call may change of the person's experiment, and what only the person may."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from samebits.server.mcp.overrides import SWITCHES

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("strays")]
TAKES_CODE = re.compile(r"PATH|PRELOAD|PLUGIN|LIBRAR|DIR|FOLDER|ROOT|SERIALI|_SO_|HOME|TOOL|TOKEN$|_KEY")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.env.LD_PRELOAD=/etc/evil.so", "trainer.env.LD_PRELOAD: is not among the switches"),
        ("rollout.env={PYTHONPATH='evil'}", "rollout.env.PYTHONPATH: is not among the switches"),
        ("rollout.env.VLLM_PLUGINS=evil", "rollout.env.VLLM_PLUGINS: is not among the switches"),
        ("rollout.env.OMP_TOOL_LIBRARIES=evil.so", "rollout.env.OMP_TOOL_LIBRARIES: is not among the switches"),
        ("rollout.env.OMP_NUM_THREADS=/etc/evil", "rollout.env.OMP_NUM_THREADS: has a value that is no plain word"),
        ("rollout.engine.hf_config_path=/etc", "rollout.engine.hf_config_path '/etc': outside the allowed folders"),
        ("rollout.engine.hf_config_path=out/x", "rollout.engine.hf_config_path 'out/x': outside the allowed folders"),
        ("rollout.engine.tokenizer=someone/model", "'someone/model': no such file or folder below the allowed"),
        ("rollout.engine.tokenizer=~/x", "'~/x': no such file or folder below the allowed"),
        ("rollout.engine.worker_extension_cls=evil", "rollout.engine.worker_extension_cls: loads code"),
        ("rollout.engine.trust_remote_code=true", "rollout.engine.trust_remote_code: loads code"),
        ("rollout.engine.distributed_executor_backend=evil.mod.Class", "it could name code"),
        ('rollout.engine.compilation_config={"a"', "it could name code"),
        ("trainer.options.loader=evil:load", "it could name code"),
        ("rollout.side=python:evil:f", "rollout.side 'python:evil:f': names code that is not in the file"),
        ("pool.worker_python=worker", "a call cannot choose the interpreter"),
    ],
)
async def test_an_override_that_could_load_code_or_leave_the_roots_is_refused(
    override: str, words: str, connected: Any, project: Path, error_of: Any
) -> None:
    (project / "out").symlink_to("/etc")
    async with connected() as client:
        told = error_of(await client.call_tool("measure_gap", {"overrides": [override]}))
    assert words in told
    assert "Next:" in told
    assert list((project / ".samebits" / "jobs").glob("*/request.json")) == []


async def test_what_the_persons_own_file_says_stays(connected: Any, project: Path) -> None:
    """The control: the same settings in the file pass, beside an override of something else."""
    file = project / "samebits.toml"
    text = file.read_text().replace('model = "model"', 'model = "model"\nside = "python:mine:f"\n')
    text = text.replace('engine = { do = "sleep" }', 'engine = { do = "sleep", worker_extension_cls = "my.module" }')
    file.write_text(text + '[trainer]\nside = "python:mine:g"\nenv = { LD_PRELOAD = "/opt/mine.so" }\n')
    kept = ["workload.prompts=3", "trainer.side=python:mine:f", "trainer.env.LD_PRELOAD=/opt/mine.so"]
    async with connected() as client:
        assert not (await client.call_tool("measure_gap", {"overrides": kept})).is_error
    (request,) = (json.loads(path.read_text()) for path in project.glob(".samebits/jobs/*/request.json"))
    assert request["experiment"]["trainer"]["env"] == {"LD_PRELOAD": "/opt/mine.so"}
    assert request["experiment"]["rollout"]["engine"]["worker_extension_cls"] == "my.module"


async def test_switches_that_change_numbers_pass(connected: Any, project: Path) -> None:
    given = [
        'rollout.env.VLLM_BATCH_INVARIANT="1"',
        "trainer.env={ONEDNN_MAX_CPU_ISA='AVX2', CUBLAS_WORKSPACE_CONFIG=':4096:8'}",
        "rollout.engine.enable_prefix_caching=false",
        "rollout.engine.gpu_memory_utilization=0.5",
        "rollout.engine.kv_cache_dtype=fp8_e5m2",
        "rollout.engine.hf_config_path=model/",
    ]
    async with connected() as client:
        assert not (await client.call_tool("measure_gap", {"overrides": given})).is_error
    (request,) = (json.loads(path.read_text()) for path in project.glob(".samebits/jobs/*/request.json"))
    assert request["experiment"]["rollout"]["env"] == {"VLLM_BATCH_INVARIANT": "1"}
    assert request["experiment"]["rollout"]["engine"]["kv_cache_dtype"] == "fp8_e5m2"


def test_no_switch_names_a_place_code_is_loaded_from() -> None:
    assert len(SWITCHES) > 50
    assert {name for name in SWITCHES if TAKES_CODE.search(name)} == set()
    assert TAKES_CODE.search("VLLM_PLUGINS")
    assert TAKES_CODE.search("OMP_TOOL_LIBRARIES")
