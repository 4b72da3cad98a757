"""The repro, before and after: run for real, and a kernel that does not repair it is refused."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from samebits.kernels.candidate import describe, load
from samebits.tools.job.job import Job
from samebits.tools.propose import child
from samebits.tools.propose import repro as repros
from samebits.tools.sandbox.box import ONLY_VARIABLE
from samebits.tools.schema.artifacts.proposal import ReproRun
from samebits.tools.schema.artifacts.repro import ReproManifest
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.proposals import open_proposal
from samebits.tools.store import artifact

SCRIPT = '''"""Two ways to sum."""

import sys

SCALARS = {"eps": 1e-06}


def main():
    if len(sys.argv) > 5:
        return 2
    print("(0, 1): rollout 1.0 (0x3f800000), trainer 1.0 (0x3f800001), 1")
    print("2 of 60 elements differ")
    return 1


if __name__ == "__main__":
    sys.exit(main())
'''


def cut_out(folder: Path, script: str = SCRIPT, kind: str = "norm", width: int = 60) -> Path:
    """A Repro artifact as `samebits minimize` makes them; here with a script of a few lines."""
    make = torch.Generator().manual_seed(0)
    tensors = {f"in.{name}": torch.randn(3, width, generator=make) for name in ("x", "residual")}
    tensors |= {"in.weight": torch.randn(width, generator=make)}
    manifest = ReproManifest(
        operator=0, operator_kind=kind, rollout="vLLM's kernel", trainer="transformers' code", needs_vllm=False,
        shrunk="rows 40 -> 3", before={"T": 40}, after={"T": 3}, runs=9, fingerprint="2 of 60",
    )  # fmt: skip
    artifact.write(folder, manifest, {"inputs.safetensors": tensors}, {"repro.py": script, "README.md": ""})
    return folder


def candidate_with(project: Path, old: str, new: str) -> None:
    source = project / "kernels" / "norm" / "kernel.py"
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))


def compared(project: Path, repro: Path) -> ReproRun:
    """What the child would find; the candidate in this process, without the sandbox."""
    stored = artifact.load_tensors(repro, "inputs.safetensors")
    inputs = {name[3:]: tensor for name, tensor in stored.items()}
    args, rows = child.norm(inputs, child.scalars_of(repro))
    return child.compare(load(describe(project / "kernels" / "norm"), repro).run, args, rows)


def after(project: Path, repro: Path, place: Path) -> ReproRun:
    """The whole way, through the child and the sandbox."""
    manifest = artifact.read(repro, ReproManifest)
    return repros.run_after(repro, manifest, describe(project / "kernels" / "norm"), Job(place))


def test_a_proposal_shows_the_repro_run_before_and_after(kit: Any, project: Path) -> None:
    folder = cut_out(project / ".samebits" / "jobs" / "m" / "repro")
    proposal = open_proposal(kit.propose(project, repro=str(folder)))
    shown = proposal.manifest.repro
    assert shown is not None
    assert (shown.before.status, shown.before.differing, shown.before.total) == ("differs", 2, 60)
    assert (shown.after.status, shown.after.differing) == ("equal", 0)
    assert shown.after.total == 3 * 2 * 3 * 60, "three comparisons of both outputs of three rows"
    assert proposal.manifest.made_from["repro"] == artifact.identity(folder)
    assert (proposal.folder / "repro.py").read_text() == SCRIPT


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    total = total_of(s)\n", "    total = total_of(s) * (1 + 1e-6 * (len(x) > 1))\n"),
        ("    total = total_of(s)\n", "    total = total_of(s) + torch.arange(len(x)) * 1e-3\n"),
        (
            "    total = total_of(s)\n",
            "    CALLS[0] = CALLS.get(0, 0) + 1\n    total = total_of(s) + CALLS[0] * 1e-3\n",
        ),
    ],
    ids=["by company", "by position", "by call"],
)
def test_a_kernel_whose_bits_move_with_company_place_or_call_differs(
    project: Path, tmp_path: Path, old: str, new: str
) -> None:
    folder = cut_out(tmp_path / "repro")
    assert compared(project, folder).status == "equal"
    candidate_with(project, old, new)
    seen = compared(project, folder)
    assert seen.status == "differs"
    assert 0 < seen.differing < seen.total


def test_a_kernel_that_does_not_repair_the_repro_is_refused(
    kit: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cut_out(project / ".samebits" / "jobs" / "m" / "repro")
    run = ReproRun(status="differs", words="1 of 9 elements differ", differing=1, total=9)
    monkeypatch.setattr(repros, "run_after", lambda *_, **__: run)
    with pytest.raises(UserError, match="does not repair the repro: 1 of 9"):
        kit.propose(project, repro=str(folder))


def test_a_repro_that_is_equal_has_nothing_to_repair(kit: Any, project: Path) -> None:
    script = SCRIPT.replace("2 of 60", "0 of 60").replace("    return 1\n", "    return 0\n")
    folder = cut_out(project / ".samebits" / "jobs" / "m" / "repro", script)
    with pytest.raises(UserError, match="nothing to repair"):
        kit.propose(project, repro=str(folder))


@pytest.mark.parametrize(
    "script",
    [
        SCRIPT.replace("    return 1\n", "    return 2\n"),
        SCRIPT.replace("2 of 60", "0 of 60"),
        SCRIPT.replace("elements differ", "elements"),
        "import os\nos.abort()\n",
    ],
)
def test_a_repro_that_cannot_run_or_does_not_say_what_differs_is_no_difference(tmp_path: Path, script: str) -> None:
    seen = repros.run_before(cut_out(tmp_path / "repro", script), Job(tmp_path))
    assert seen.status == "not_run"
    assert "could not be run here" in seen.words


REACHES = """import socket

for attempt in (
    lambda: open({mark!r}, "w").close(),
    lambda: socket.create_connection(("127.0.0.1", {port}), 2).close(),
    lambda: open(__file__, "a").close(),
):
    try:
        attempt()
        print("reached")
    except OSError:
        print("kept out")
print("2 of 60 elements differ")
raise SystemExit(1)
"""


@pytest.mark.parametrize("kind", ["", "none"])
def test_what_a_repro_reaches_outside_is_nothing_in_a_sandbox_and_said_without_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`none` is the control: the attempts are real."""
    monkeypatch.setenv(ONLY_VARIABLE, kind)
    mark = tmp_path / "mark"
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = REACHES.format(mark=str(mark), port=server.getsockname()[1])
        folder = cut_out(tmp_path / "repro", script)
        server.settimeout(0.5)
        seen = repros.run_before(folder, Job(tmp_path))
        try:
            server.accept()[0].close()
            reached = True
        except TimeoutError:
            reached = False
    assert seen.sandbox is not None
    assert (seen.status, seen.differing) == ("differs", 2)
    open_ = not seen.sandbox.whole
    assert (mark.exists(), reached) == (open_, open_)
    assert (folder / "repro.py").read_text() == script
    assert bool(seen.unsandboxed) is open_
    assert open_ or not kind, "where the sandbox is switched off it is open"
    assert not (tmp_path / "repro-before").exists()


def test_where_a_sandbox_is_required_and_not_here_nothing_of_a_repro_runs(
    kit: Any, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ONLY_VARIABLE, "none")
    mark = tmp_path / "mark"
    script = REACHES.format(mark=str(mark), port=1)
    folder = cut_out(project / ".samebits" / "jobs" / "m" / "repro", script)
    with pytest.raises(UserError, match=r"sandbox = required: repro.py is code, and UNSANDBOXED"):
        kit.propose(project, repro=str(folder), sandbox="required")
    (project / "samebits.toml").write_text(kit.TOML + '[gate]\nsandbox = "required"\n')
    kit.git(project, "commit", "-q", "-a", "-m", "Only in a sandbox")
    with pytest.raises(UserError, match="sandbox = required"):
        kit.propose(project, repro=str(folder))
    assert not mark.exists()


def test_where_the_operator_is_another_the_repro_says_not_run(project: Path, tmp_path: Path) -> None:
    order = {
        "candidate": str(project / "kernels" / "norm"),
        "repro": str(cut_out(tmp_path / "repro")),
        "kind": "attention",
    }
    seen = child.answer(order, tmp_path)
    assert (seen.status, seen.words) == ("not_run", "a repro of kind attention cannot be put to operator rms_norm")


@pytest.mark.parametrize(
    ("make", "inputs", "scalars", "said"),
    [
        (child.linear, {}, {"weight": "merged"}, "merged"),
        (child.activation, {"gate": torch.ones(1)}, {}, "not silu"),
        (child.activation, {"gate": torch.ones(1), "up": torch.ones(1)}, {"name": "gelu"}, "not silu"),
        (child.embedding, {}, {"scale": 2.0}, "scaled"),
    ],
)
def test_inputs_that_are_not_the_operators_are_not_bent_to_fit(make: Any, inputs: Any, scalars: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(inputs, scalars)


@pytest.mark.slow
def test_where_the_candidate_cannot_take_the_shape_the_repro_says_not_run(project: Path, tmp_path: Path) -> None:
    folder = cut_out(tmp_path / "repro", width=8)
    (tmp_path / "job").mkdir()
    seen = after(project, folder, tmp_path / "job")
    assert seen.status == "not_run"
    assert "the candidate cannot run on it" in seen.words


@pytest.mark.parametrize(
    "bad", [pytest.param("os._exit(0)", marks=pytest.mark.slow), "open(REPRO, 'w').write('0 of 60 elements differ')"]
)
def test_a_candidate_that_ends_its_process_or_writes_elsewhere_is_not_run(
    project: Path, tmp_path: Path, bad: str
) -> None:
    folder = cut_out(tmp_path / "repro")
    before = (folder / "repro.py").read_text()
    candidate_with(project, "CALLS = {}\n", f"import os\n\nCALLS = {{}}\nREPRO = {str(folder / 'repro.py')!r}\n")
    candidate_with(project, "    total = total_of(s)\n", f"    {bad}\n    total = total_of(s)\n")
    (tmp_path / "job").mkdir()
    seen = after(project, folder, tmp_path / "job")
    assert seen.status == "not_run", seen
    assert (folder / "repro.py").read_text() == before


def test_what_hangs_is_ended_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repros, "LIMIT_S", 1)
    script = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    code, said = repros.run([sys.executable, "-c", script], tmp_path, os.environ)
    assert (code, said) == (-1, "no answer within 1 s")


def test_a_damaged_repro_is_refused(kit: Any, project: Path) -> None:
    folder = cut_out(project / ".samebits" / "jobs" / "m" / "repro")
    (folder / "repro.py").write_text("print('2 of 60 elements differ')\nraise SystemExit(1)\n")
    with pytest.raises(UserError, match="damaged"):
        kit.propose(project, repro=str(folder))
