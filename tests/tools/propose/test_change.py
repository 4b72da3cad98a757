"""What a proposal is made of, and everything it must not be made of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from samebits.tools.propose.change import sha256
from samebits.tools.schema.artifacts.candidate_gate import Incomplete, Leg, Red, Stopped
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.proposals import open_proposal

RED = Leg(name="bits", mandatory=True, seconds=0.1, outcome=Red(what="3 of 9 elements differ"))


def test_the_patch_holds_the_candidate_and_the_kernels_line_and_leaves_the_repository_alone(
    kit: Any, project: Path
) -> None:
    (project / "kernels" / "norm" / "notes.txt").write_text("not part of it\n")
    before, objects = kit.state(project), sorted((project / ".git" / "objects").rglob("*"))
    proposal = open_proposal(kit.propose(project))
    manifest = proposal.manifest
    assert kit.state(project) == before
    assert sorted((project / ".git" / "objects").rglob("*")) == objects, "nothing below .git either"
    assert {file.path: file.change for file in manifest.paths} == {
        "kernels/norm/candidate.toml": "added", "kernels/norm/kernel.py": "added", "samebits.toml": "changed",
    }  # fmt: skip
    assert manifest.left_out == ("notes.txt",)
    assert manifest.base == kit.git(project, "rev-parse", "HEAD")
    assert manifest.base_subject == "Start of the project"
    kit.git(project, "apply", "--cached", str(proposal.folder / "change.patch"))
    assert kit.git(project, "write-tree") == manifest.tree
    assert 'kernels = ["kernels/norm"]  # for now' in kit.git(project, "show", ":samebits.toml")


def test_a_changed_candidate_that_is_committed_and_named_already_is_a_change_of_its_source_alone(
    kit: Any, project: Path
) -> None:
    (project / "samebits.toml").write_text(
        '[rollout]\nside = "transformers"\nkernels = ["kernels/norm"]\ndtype = "float32"\n'
        '[trainer]\nkernels = ["kernels/norm"]\ndtype = "float32"\n'
    )
    kit.git(project, "add", ".")
    kit.git(project, "commit", "-qm", "The first form")
    with pytest.raises(UserError, match="nothing to propose"):
        kit.propose(project)
    source = project / "kernels" / "norm" / "kernel.py"
    source.write_text(source.read_text().replace("CALLS = {}", "CALLS = {}  # counts"))
    manifest = open_proposal(kit.propose(project)).manifest
    assert [(file.path, file.change) for file in manifest.paths] == [("kernels/norm/kernel.py", "changed")]


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"legs": (RED,), "verdict": Stopped(leg="bits")}, "its gate is red at leg 'bits'"),
        ({"verdict": Incomplete(missing=("all on cuda",))}, r"not complete \(not run: all on cuda\)"),
        ({"legs": (RED,)}, "says passed but its legs do not"),
        ({"legs": ()}, "says passed but its legs do not"),
        ({"digest": "0" * 64}, "of another candidate"),
        ({"operator": "linear"}, "a report for operator linear"),
        ({"contract_version": 0}, "contract 0"),
    ],
)
def test_a_report_that_is_not_green_or_not_its_own_is_refused(
    kit: Any, project: Path, tmp_path: Path, report: dict[str, Any], said: str
) -> None:
    made = kit.gate(tmp_path / "gate", project / "kernels" / "norm", **report)
    with pytest.raises(UserError, match=said):
        kit.propose(project, gate=str(made))
    assert not list(project.rglob("proposal"))


def test_a_candidate_that_changed_after_its_gate_is_refused(kit: Any, project: Path, tmp_path: Path) -> None:
    made = kit.gate(tmp_path / "gate", project / "kernels" / "norm")
    with (project / "kernels" / "norm" / "kernel.py").open("a") as file:
        file.write("# one more line\n")
    with pytest.raises(UserError, match="of another candidate"):
        kit.propose(project, gate=str(made))


def test_a_damaged_report_is_refused(kit: Any, project: Path, tmp_path: Path) -> None:
    made = kit.gate(tmp_path / "gate", project / "kernels" / "norm")
    (made / "log.txt").write_text("changed")
    with pytest.raises(UserError, match="damaged"):
        kit.propose(project, gate=str(made))


@pytest.mark.parametrize("staged", [False, True])
def test_a_dirty_base_is_refused(kit: Any, project: Path, staged: bool) -> None:
    (project / "train.py").write_text("print('something else')\n")
    if staged:
        kit.git(project, "add", "train.py")
    with pytest.raises(UserError, match=r"uncommitted changes \(train.py\)"):
        kit.propose(project)
    kit.git(project, "commit", "-qam", "On purpose")
    assert open_proposal(kit.propose(project))


def test_the_kernels_line_itself_may_stand_there_already_but_no_other_edit_of_the_file(kit: Any, project: Path) -> None:
    first = open_proposal(kit.propose(project)).manifest
    edited = kit.TOML.replace('kernels = "none"  #', 'kernels = ["kernels/norm"]  #')
    edited = edited.replace("this side\n", 'this side\nkernels = ["kernels/norm"]\n')
    (project / "samebits.toml").write_text(edited)
    assert open_proposal(kit.propose(project)).manifest.patch == first.patch
    (project / "samebits.toml").write_text(edited.replace("float32", "bfloat16"))
    with pytest.raises(UserError, match=r"uncommitted changes \(samebits.toml\)"):
        kit.propose(project)


def test_a_base_that_is_not_there_or_foreign_is_refused(kit: Any, project: Path, tmp_path: Path) -> None:
    bare = tmp_path / "no-repository"
    (bare / "kernels").mkdir(parents=True)
    (project / "kernels" / "norm").rename(bare / "kernels" / "norm")
    with pytest.raises(UserError, match="not in a git repository"):
        kit.propose(project, candidate=bare / "kernels" / "norm")
    kit.git(bare, "init", "-q")
    with pytest.raises(UserError, match="in another repository than the candidate"):
        kit.propose(project, candidate=bare / "kernels" / "norm")
    (bare / "samebits.toml").write_text("")
    with pytest.raises(UserError, match="has no commit yet"):
        kit.propose(bare)
    kit.git(bare, "commit", "-q", "--allow-empty", "-m", "Empty")
    with pytest.raises(UserError, match="not committed"):
        kit.propose(bare)


@pytest.mark.parametrize("what", ["folder", "source", "above", "config"])
def test_links_are_refused_not_followed(kit: Any, project: Path, tmp_path: Path, what: str) -> None:
    norm = project / "kernels" / "norm"
    elsewhere = tmp_path / "elsewhere"
    target = {"folder": norm, "source": norm / "kernel.py", "above": norm.parent, "config": project / "samebits.toml"}
    (target[what]).rename(elsewhere)
    target[what].symlink_to(elsewhere)
    if what == "config":
        kit.git(project, "add", "samebits.toml")
        kit.git(project, "commit", "-qm", "A link")
    made = kit.gate(tmp_path / "gate", norm) if what != "source" else tmp_path / "none"
    with pytest.raises(UserError, match=r"link|outside the repository|another repository|git repository|no such file"):
        kit.propose(project, gate=str(made))


def test_a_link_inside_the_repository_is_refused_too(kit: Any, project: Path) -> None:
    (project / "short").symlink_to("kernels")
    with pytest.raises(UserError, match="a symbolic link"):
        kit.propose(project, candidate=project / "short" / "norm")


@pytest.mark.parametrize("name", ["a b", "\u00fcber", 'quo"te', "-x*"])
def test_a_path_that_a_patch_would_quote_is_refused(kit: Any, project: Path, name: str) -> None:
    (project / "kernels" / "norm").rename(project / "kernels" / name)
    with pytest.raises(UserError, match="has characters that a patch cannot hold plainly"):
        kit.propose(project, candidate=project / "kernels" / name)


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"x = '\xff'\n", "not UTF-8"), (b"x = 1\0\n", "NUL"), (b"#" * (1 << 19) + b"\n", "nobody can review that")],
)
def test_what_nobody_can_read_is_refused(kit: Any, project: Path, data: bytes, said: str) -> None:
    (project / "kernels" / "norm" / "kernel.py").write_bytes(data)
    with pytest.raises(UserError, match=said):
        kit.propose(project)


def test_paths_outside_the_roots_are_refused(kit: Any, project: Path, tmp_path: Path) -> None:
    inner = (str(project / "kernels"),)
    with pytest.raises(UserError, match="outside the allowed folders"):
        kit.propose(project, roots=inner)
    foreign = kit.gate(tmp_path / "gate", project / "kernels" / "norm")
    with pytest.raises(UserError, match=r"gate .* outside the allowed folders"):
        kit.propose(project, roots=(str(project),), gate=str(foreign))
    assert open_proposal(kit.propose(project, roots=(str(project),)))


def test_a_git_folder_outside_the_roots_is_refused(kit: Any, project: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    kit.git(project, "worktree", "add", "-q", str(tree), "-b", "side")
    (project / "kernels").rename(tree / "kernels")
    with pytest.raises(UserError, match=r"the repository's git folder .* outside"):
        kit.propose(tree, roots=(str(tree),))
    assert open_proposal(kit.propose(tree, roots=(str(tree), str(project))))


def test_hooks_settings_and_replaced_commits_of_the_repository_change_nothing(
    kit: Any, project: Path, tmp_path: Path
) -> None:
    plain = open_proposal(kit.propose(project)).manifest
    mark = tmp_path / "ran"
    script = f"#!/bin/sh\ntouch {mark}\n"
    for hook in ("post-index-change", "reference-transaction", "pre-commit"):
        (project / ".git" / "hooks" / hook).write_text(script)
        (project / ".git" / "hooks" / hook).chmod(0o755)
    (tmp_path / "tool").write_text(script)
    (tmp_path / "tool").chmod(0o755)
    for key, value in {
        "core.fsmonitor": str(tmp_path / "tool"), "diff.external": str(tmp_path / "tool"), "diff.noprefix": "true",
        "diff.mnemonicPrefix": "true", "color.ui": "always", "apply.whitespace": "fix", "diff.context": "1",
    }.items():  # fmt: skip
        kit.git(project, "config", key, value)
    again = open_proposal(kit.propose(project)).manifest
    kit.review(kit.propose(project))
    assert again.patch == plain.patch
    assert not mark.exists()
    os.environ["GIT_DIR"] = str(tmp_path / "nowhere")
    try:
        assert open_proposal(kit.propose(project)).manifest.patch == plain.patch
    finally:
        del os.environ["GIT_DIR"]


@pytest.mark.parametrize("name", ["change.patch", "gate.json"])
def test_a_part_that_is_changed_afterwards_is_seen(kit: Any, project: Path, name: str) -> None:
    made = kit.propose(project)
    good = (made / name).read_bytes()
    for bad in (good.replace(b"e", b"E", 1), good + b"\n", b""):
        (made / name).write_bytes(bad)
        with pytest.raises(UserError, match="damaged: its bytes"):
            open_proposal(made)
    (made / name).unlink()
    with pytest.raises(UserError, match="damaged"):
        open_proposal(made)
    (made / "copy").write_bytes(good)
    (made / name).symlink_to("copy")
    with pytest.raises(UserError, match="not a plain file"):
        open_proposal(made)


def test_a_manifest_that_is_changed_is_another_proposal(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    first = open_proposal(made).digest
    text = (made / "manifest.json").read_text()
    (made / "manifest.json").write_text(text.replace("One order", "Any order"))
    assert open_proposal(made).digest != first


def test_a_red_report_swapped_in_with_new_digests_is_refused_at_opening(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    manifest = open_proposal(made).manifest
    red = (made / "gate.json").read_bytes().replace(b'"passed"', b'"incomplete",\n  "missing": []')
    (made / "gate.json").write_bytes(red)
    swapped = manifest.model_copy(
        update={
            "files": manifest.files | {"gate.json": sha256(red)},
            "made_from": {"candidate_gate": sha256(red)},
        }
    )
    (made / "manifest.json").write_text(swapped.model_dump_json())
    with pytest.raises(UserError, match="its gate is not complete"):
        open_proposal(made)


def test_a_candidate_is_not_put_under_a_side_that_refuses_it(kit: Any, tmp_path: Path) -> None:
    toml = '[rollout]\nkernels = "samebits"\n[trainer]\ndtype = "float32"\n'
    project = kit.repository(tmp_path / "other", toml)
    with pytest.raises(UserError, match=r"a vLLM side takes no candidate folder\. Next: name the trainer alone"):
        kit.propose(project)
    manifest = open_proposal(kit.propose(project, sides=("trainer",))).manifest
    assert manifest.sides == ("trainer",)
    assert [file.path for file in manifest.paths] == [
        "kernels/norm/candidate.toml",
        "kernels/norm/kernel.py",
        "samebits.toml",
    ]


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (
            '[trainer]\ndtype = "bfloat16"\n',
            r"trainer\.kernels: candidate rows-in-pytorch does not claim dtype bfloat16",
        ),
        ("[trainer]\n", "does not claim dtype bfloat16, it was built for float32"),
        ('device = "cuda"\n[trainer]\ndtype = "float32"\n', "does not claim device cuda, it was built for cpu"),
    ],
)
def test_a_candidate_that_cannot_run_in_the_experiment_is_not_proposed(
    kit: Any, tmp_path: Path, toml: str, said: str
) -> None:
    project = kit.repository(tmp_path / "other", toml)
    with pytest.raises(UserError, match=said):
        kit.propose(project, sides=("trainer",))
    (project / "samebits.toml").write_text('device = "cpu"\n[trainer]\ndtype = "float32"\n')
    kit.git(project, "commit", "-qam", "What it was built for")
    assert open_proposal(kit.propose(project, sides=("trainer",)))
