"""`samebits serve` as a client starts it: another process, standard input and output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

WRITE = """
import sys
from pathlib import Path
from samebits.tools.sides.transformers.tiny import write_tiny
write_tiny(Path(sys.argv[1]), "qwen3", "float32", 0, num_hidden_layers=1, hidden_size=32, intermediate_size=64,
           head_dim=16, vocab_size=64, max_position_embeddings=64)
"""
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("strays")]


def serving(folder: Path, *options: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "samebits.server.cli.main", "serve", *options],
        cwd=folder,
        env=dict(os.environ),
    )


@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_both_eras_work_over_stdio_though_a_worker_prints_protocol(era: Any, project: Path, doing: Any) -> None:
    async with Client(serving(project), mode=era) as client:
        assert len((await client.list_tools()).tools) == 11
        answer = (await client.call_tool("measure_gap", doing("print"))).structured_content
        assert answer["verdict"] == "equal"
        listing = (await client.call_tool("wait_job", {})).structured_content
        assert listing["total"] == 1


async def test_a_real_measure_over_stdio_from_setup_to_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stand-in: transformers against itself on a tiny model, real workers and sides."""
    monkeypatch.setenv("SAMEBITS_LOCKS", str(tmp_path / "locks"))
    model = tmp_path / "models" / "tiny"
    subprocess.run([sys.executable, "-c", WRITE, str(model)], check=True)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "samebits.toml").write_text(
        f'device = "cpu"\n[rollout]\nside = "transformers"\nmodel = "{model}"\ndtype = "float32"\n'
        '[trainer]\ndtype = "float32"\n[workload]\nprompts = 2\nprompt_tokens = [3, 9]\nnew_tokens = 4\n'
    )
    options = ("--root", str(tmp_path / "project"), "--root", str(model))
    async with Client(serving(tmp_path / "project", *options), mode="legacy") as client:
        result = await client.call_tool("measure_gap", {"axes": []})
        while not result.is_error and result.structured_content["state"] in ("queued", "running"):
            result = await client.call_tool("wait_job", {"job": result.structured_content["job"]})
        assert not result.is_error, result.content
        answer = result.structured_content
        assert answer["verdict"] in ("equal", "differs")
        assert answer["rows"][0]["tokens"] == 8
        job, _, path = answer["ids"]["gap"].partition("/")
        manifest = await client.read_resource(f"job://{job}/file/{path}/manifest.json")
        assert '"kind"' in manifest.contents[0].text
    assert (tmp_path / "project" / ".samebits" / "jobs" / job / "result.json").is_file()


def test_serving_loads_nothing_heavy(project: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom samebits.server.mcp.app import make_server\n"
        "from samebits.server.mcp.roots import Roots\nmake_server(Roots.of((Path(),)))\n"
        "assert 'mcp' in sys.modules\n"
        "assert not {'torch', 'numpy', 'vllm', 'transformers', 'triton'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=project, check=True)
