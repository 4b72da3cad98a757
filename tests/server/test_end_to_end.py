"""The whole way, as an agent and a person go it: a client over standard input and output, real CPU vLLM, a tiny Qwen3.

Measure, capture, diff, minimise, build (red, then green), propose, a refused apply, approval in a browser, apply, and
the gate on the branch that came of it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

pytestmark = [pytest.mark.anyio, pytest.mark.vllm, pytest.mark.slow, pytest.mark.usefixtures("strays")]
STEADY = '{ ONEDNN_MAX_CPU_ISA = "AVX512_CORE_BF16", VLLM_CPU_ATTN_SPLIT_KV = "0" }'
SETTINGS = f"""device = "cpu"
[rollout]
model = "../model"
eager = true
max_model_len = 256
env = {STEADY}
[trainer]
env = {STEADY}
[workload]
prompts = 4
prompt_tokens = [3, 40]
new_tokens = 8
[gate]
min_tokens = 8
"""
CANDIDATE = """operator = "rotary"
name = "turn"
kind = "pytorch"
devices = ["cpu"]
"""
KERNEL = '''"""Rotary embedding: float32 products and their sum, one rounding."""

import torch


def turned(x, cos, sin):
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    c, s = cos[:, None, :], sin[:, None, :]
    wide = torch.cat([a * c - b * s, b * c + a * s], -1)
    return torch.cat([wide.to(x.dtype), rest], -1)


def run(q, k, positions, cache):
    cos, sin = cache[positions.long()].float().chunk(2, -1)
    return turned(q, cos, sin), turned(k, cos, sin)
'''
MENDED = KERNEL.replace("wide.to(x.dtype)", "torch.where(torch.isnan(wide), torch.nan, wide.to(x.dtype))")
WRITE = "import sys; from pathlib import Path; from samebits.tools.sides.transformers.tiny import write_tiny; " + (
    "write_tiny(Path(sys.argv[1]), num_hidden_layers=2)"
)
BOTH_OURS = ["rollout.kernels=samebits"]


def person() -> ModuleType:
    """The stand-in for a person at a terminal and a browser; tests/ is no package."""
    path = Path(__file__).with_name("review") / "person.py"
    spec = importlib.util.spec_from_file_location("samebits_person", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def someone() -> ModuleType:
    """The person; where no browser is they cannot be, which is said, and fails where a browser is required."""
    found = person()
    browser = found.helper("browser")
    if browser.chromium() is None:
        if browser.required():
            pytest.fail("no chromium, and CI or SAMEBITS_REQUIRE_BROWSER=1 asks for it")
        pytest.skip("not run: no chromium")
    return found


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's project under git, the model beside it."""
    for name, value in {
        "SAMEBITS_LOCKS": str(tmp_path / "locks"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "GIT_CONFIG_GLOBAL": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)
    subprocess.run([sys.executable, "-c", WRITE, str(tmp_path / "model")], check=True, capture_output=True)
    (tmp_path / "branch").mkdir()  # a root must be there when the server starts; the branch is checked out into it
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "samebits.toml").write_text(SETTINGS)
    (folder / ".gitignore").write_text(".samebits/\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.email", "user@example.com")
    git(folder, "config", "user.name", "User")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Experiment")
    return folder


@dataclass
class Agent:
    """Calls tools as an agent does: a job that goes on is waited for with wait_job."""

    client: Client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer at the end of the job."""
        result = await self.client.call_tool(tool, arguments)
        while not result.is_error and (result.structured_content or {})["state"] in ("queued", "running"):
            result = await self.client.call_tool("wait_job", {"job": (result.structured_content or {})["job"]})
        assert not result.is_error, (tool, result.content)
        answer: dict[str, Any] = result.structured_content or {}
        return answer

    async def refused(self, tool: str, **arguments: Any) -> str:
        """The text of the error."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result
        return str(getattr(result.content[0], "text", ""))


def serving(repository: Path) -> StdioServerParameters:
    roots = [part for name in ("project", "model", "branch") for part in ("--root", str(repository.parent / name))]
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "samebits.server.cli.main", "serve", *roots],
        cwd=repository,
        env=dict(os.environ),
    )


async def found(agent: Agent, repository: Path) -> str:
    """From the gap to one operator cut out; its id."""
    setup = await agent.call("inspect_setup")
    assert setup["verdict"] == "done", setup
    assert "decode exact" in next(row["detail"] for row in setup["rows"] if row["check"] == "support")
    gap = await agent.call("measure_gap", axes=["repeat"])
    assert gap["verdict"] == "differs"
    assert gap["rows"][0]["nonzero"] == gap["rows"][0]["tokens"] == 32
    rollout = gap["ids"]["rollout"]
    taps = await agent.call("capture_activations", side="trainer", rollout=rollout)
    assert taps["ids"].keys() == {"capture"}
    work = await agent.call("diff_ops", rollout=rollout, max_operators=1)
    assert work["verdict"] == "differs"
    assert work["rows"][0]["kind"] == "rotary"
    assert work["rows"][0]["cause"] == "cast"
    cut = await agent.call("minimize_repro", divergence=work["ids"]["divergence"], operator=0)
    python, script = cut["next"].split()
    assert python == "python"
    assert subprocess.run([sys.executable, script], cwd=repository, check=False, capture_output=True).returncode == 1
    return str(cut["ids"]["repro"])


async def built(agent: Agent, repository: Path) -> str:
    """A candidate: red at first, which nobody can propose, then green; the id of its gate."""
    folder = repository / "kernels/turn"
    folder.mkdir(parents=True)
    (folder / "candidate.toml").write_text(CANDIDATE)
    (folder / "kernel.py").write_text(KERNEL)
    red = await agent.call("build_kernel", candidate="kernels/turn", timing=False)
    assert red["verdict"] == "differs"
    assert "nan" in red["summary"].lower()
    gate = red["ids"]["candidate_gate"]
    assert "red at leg 'bits'" in await agent.refused("propose_change", candidate="kernels/turn", gate=gate)
    (folder / "kernel.py").write_text(MENDED)
    assert "of another candidate" in await agent.refused("propose_change", candidate="kernels/turn", gate=gate)
    green = await agent.call("build_kernel", candidate="kernels/turn", timing=False)
    assert green["verdict"] == "done", green
    return str(green["ids"]["candidate_gate"])


async def approved(agent: Agent, repository: Path, someone: ModuleType, repro: str, gate: str) -> str:
    """The branch of an approved proposal."""
    made = await agent.call(
        "propose_change", candidate="kernels/turn", gate=gate, repro=repro, sides="trainer", why="Rotary rounds once."
    )
    proposal = made["ids"]["proposal"]
    said = {row["what"]: row["name"] for row in made["rows"]}
    assert "elements differ" in said["repro before"]
    assert "elements differ" not in said["repro after"]
    patch = re.findall(r"patch sha256 ([0-9a-f]{64})", made["summary"])[0]
    assert "not reviewed" in await agent.refused("apply_change", proposal=proposal, patch=patch)
    assert git(repository, "branch", "--format=%(refname:short)").split() == ["main"]
    with someone.Person(repository) as at_the_terminal:
        at_the_terminal.decide_on_page(proposal, "approved", "one rounding, as the engine")
    other = await agent.refused("apply_change", proposal=proposal, patch="0" * 64)
    assert f"its patch is {patch[:12]}, not 000000000000. Next: give the patch digest" in other
    applied = await agent.call("apply_change", proposal=proposal, patch=patch, branch="samebits/turn")
    assert applied["verdict"] == "done"
    assert git(repository, "status", "--porcelain", "--untracked-files=no") == "", "the work tree is the user's"
    return "samebits/turn"


@pytest.mark.timeout(1800)  # under 4 minutes on a quiet machine
async def test_from_a_gap_to_an_approved_kernel_that_the_gate_finds_exact(
    repository: Path, someone: ModuleType
) -> None:
    async with Client(serving(repository), mode="legacy") as client:
        agent = Agent(client)
        repro = await found(agent, repository)
        branch = await approved(agent, repository, someone, repro, await built(agent, repository))
        git(repository, "worktree", "add", "-q", "../branch", branch)
        config = str(repository.parent / "branch/samebits.toml")
        assert 'kernels = ["kernels/turn"]' in Path(config).read_text()
        equal = await agent.call("measure_gap", config=config, overrides=BOTH_OURS, axes=[])
        assert equal["verdict"] == "equal", equal
        assert (equal["rows"][0]["tokens"], equal["rows"][0]["nonzero"]) == (32, 0)
        axes = ["decode_prefill", "trainer_rollout"]
        gate = await agent.call(
            "run_regression",
            config=config,
            overrides=BOTH_OURS,
            axes=axes,
            require=axes,
            rollout=equal["ids"]["rollout"],
        )
        assert gate["verdict"] == "equal", gate
        assert {row["axis"]: row["outcome"] for row in gate["rows"] if row.get("axis") in axes} == dict.fromkeys(
            axes, "exact"
        )
        jobs = await agent.call("wait_job")
        assert jobs["total"] >= 13
