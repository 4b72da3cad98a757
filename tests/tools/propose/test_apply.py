"""Nothing is written that no person approved, and nothing but a new branch or a patch file is ever written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from samebits.tools.propose.change import sha256
from samebits.tools.schema import reviews
from samebits.tools.schema.artifacts.review import ReviewManifest
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.proposals import open_proposal


def branches(kit: Any, project: Path) -> list[str]:
    return sorted(kit.git(project, "for-each-ref", "--format=%(refname:short)").split())


def test_an_approved_change_becomes_a_branch_and_nothing_else_moves(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    manifest = open_proposal(made).manifest
    kit.review(made, note="Good order.\nThanks.")
    before = kit.state(project)
    result, _ = kit.apply(project, made)
    assert kit.state(project) == before
    assert branches(kit, project) == ["main", manifest.branch]
    assert kit.git(project, "rev-parse", f"{manifest.branch}^{{tree}}") == manifest.tree
    assert kit.git(project, "rev-parse", f"{manifest.branch}^") == manifest.base
    said = kit.git(project, "log", "-1", "--format=%B", manifest.branch)
    assert "Review note: Good order." in said
    assert f"Candidate: sha256 {manifest.candidate_digest}" in said
    assert result.verdict == "done"
    assert "is new" in result.summary
    again, _ = kit.apply(project, made)
    assert "was there already" in again.summary


def test_an_approved_change_becomes_a_patch_file_in_the_jobs_folder(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    kit.review(made)
    before = kit.state(project)
    result, folder = kit.apply(project, made, to="patch")
    assert kit.state(project) == before
    assert branches(kit, project) == ["main"]
    assert (folder / result.ids["patch"]).read_bytes() == (made / "change.patch").read_bytes()
    kit.git(project, "stash", "-qu")
    kit.git(project, "apply", "--index", str(folder / result.ids["patch"]))
    assert kit.git(project, "write-tree") == open_proposal(made).manifest.tree


def refused(kit: Any, project: Path, made: Path, match: str, **how: Any) -> None:
    """It is refused, and the repository is byte for byte as it was."""
    before = kit.state(project), branches(kit, project)
    with pytest.raises(UserError, match=match):
        kit.apply(project, made, **how)
    assert (kit.state(project), branches(kit, project)) == before
    assert not list(project.rglob("approved.patch"))


def test_what_nobody_reviewed_is_refused(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    refused(kit, project, made, "not reviewed. Next: ask the person to run `samebits review")
    refused(kit, project, made, "not reviewed", to="patch")


def test_what_a_person_rejected_is_refused_with_their_words(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    with pytest.raises(UserError, match="tells the proposer nothing"):
        kit.review(made, "rejected", "  \n ")
    refused(kit, project, made, "not reviewed")
    kit.review(made, "rejected", "Counts calls: take CALLS out.")
    refused(kit, project, made, "rejected by .*: Counts calls: take CALLS out.")
    kit.review(made, "approved")
    assert kit.apply(project, made)[0].verdict == "done"


def test_a_person_may_take_an_approval_back(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    kit.review(made)
    kit.review(made, "rejected", "On second thought.")
    refused(kit, project, made, "rejected by")


def other_proposal(kit: Any, project: Path) -> Path:
    """A proposal of a candidate with one more line."""
    with (project / "kernels" / "norm" / "kernel.py").open("a") as file:
        file.write("# another\n")
    made: Path = kit.propose(project)
    return made


def test_an_approval_does_not_count_for_another_patch(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    kit.review(made)
    other = other_proposal(kit, project)
    refused(kit, project, other, "not reviewed")
    record = reviews.place(open_proposal(made).digest)
    replay = reviews.place(open_proposal(other).digest)
    shutil.copy(record, replay)
    refused(kit, project, other, "does not count: it was given to another proposal")


def test_an_approval_that_was_edited_to_fit_another_patch_does_not_count(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    kit.review(made)
    other = open_proposal(other_proposal(kit, project))
    record = ReviewManifest.model_validate_json(reviews.place(open_proposal(made).digest).read_bytes())
    edited = record.model_copy(
        update={
            "made_from": {"proposal": other.digest},
            "patch": other.manifest.patch,
            "candidate_digest": other.manifest.candidate_digest,
            "evidence": dict(other.manifest.made_from),
        }
    )
    reviews.place(other.digest).write_text(edited.model_dump_json())
    refused(kit, project, other.folder, "its seal is not that of a decision made here")


@pytest.mark.parametrize("field", ["patch", "base", "candidate_digest"])
def test_an_approval_with_one_field_changed_does_not_count(kit: Any, project: Path, field: str) -> None:
    made = kit.propose(project)
    kit.review(made)
    path = reviews.place(open_proposal(made).digest)
    record = ReviewManifest.model_validate_json(path.read_bytes())
    path.write_text(record.model_copy(update={field: "0" * 40}).model_dump_json())
    refused(kit, project, made, "it was given to another")


def test_a_rejection_that_was_edited_into_an_approval_and_a_record_without_a_key_do_not_count(
    kit: Any, project: Path
) -> None:
    made = kit.propose(project)
    kit.review(made, "rejected", "No.")
    path = reviews.place(open_proposal(made).digest)
    text = path.read_text()
    path.write_text(text.replace('"rejected"', '"approved"'))
    refused(kit, project, made, "its seal")
    path.write_text("{}")
    refused(kit, project, made, "it cannot be read")
    kit.review(made)
    (reviews.home() / "review.key").unlink()
    refused(kit, project, made, "its seal")


def test_the_record_and_the_key_are_the_users_alone_and_not_in_the_project(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    kit.review(made)
    kept = [path for path in reviews.home().rglob("*") if path.is_file()]
    assert len(kept) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in [*kept, reviews.home(), reviews.home() / "reviews"])
    secret = (reviews.home() / "review.key").read_bytes()
    assert not any(secret in path.read_bytes() for path in project.rglob("*") if path.is_file())


def swapped_patch(made: Path, old: str, new: str) -> None:
    """The patch changed, and every digest of the manifest with it."""
    proposal = open_proposal(made)
    patch = proposal.patch.replace(old, new).encode()
    assert patch != proposal.patch.encode()
    (made / "change.patch").write_bytes(patch)
    manifest = proposal.manifest
    changed = manifest.model_copy(
        update={"patch": sha256(patch), "files": manifest.files | {"change.patch": sha256(patch)}}
    )
    (made / "manifest.json").write_text(changed.model_dump_json())


def test_a_patch_swapped_after_the_approval_is_refused(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    kit.review(made)
    good = (made / "change.patch").read_bytes()
    (made / "change.patch").write_bytes(good.replace(b"counts", b"count5").replace(b"CALLS = {}", b"CALLS = []"))
    refused(kit, project, made, "damaged")
    (made / "change.patch").write_bytes(good)
    swapped_patch(made, "CALLS = {}", "CALLS = []")
    refused(kit, project, made, "not reviewed")


def test_an_approved_patch_that_gives_other_files_than_the_proposal_names_is_refused(kit: Any, project: Path) -> None:
    """The person approved what a forged manifest showed: the tree still has to be the one it names."""
    made = kit.propose(project)
    swapped_patch(made, "CALLS = {}", "CALLS = []")
    kit.review(made)
    refused(kit, project, made, "gives other files than the proposal names")


@pytest.mark.parametrize("extra", ["train.py", ".github/workflows/ci.yml"])
def test_a_patch_that_touches_more_than_it_names_is_refused(kit: Any, project: Path, extra: str) -> None:
    made = kit.propose(project)
    head = open_proposal(made).patch.split("\n", 1)[0]
    more = f"diff --git a/{extra}.new b/{extra}.new\nnew file mode 100644\n--- /dev/null\n+++ b/{extra}.new\n"
    swapped_patch(made, head, f"{more}@@ -0,0 +1 @@\n+x\n{head}")
    kit.review(made)
    refused(kit, project, made, "gives other files")


def test_a_patch_out_of_the_repository_is_refused(kit: Any, project: Path, tmp_path: Path) -> None:
    made = kit.propose(project)
    swapped_patch(made, "kernels/norm/candidate.toml", "../escaped.toml")
    kit.review(made)
    refused(kit, project, made, "does not apply")
    assert not (tmp_path / "escaped.toml").exists()


def test_another_patch_than_the_one_meant_is_refused(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    kit.review(made)
    patch = open_proposal(made).manifest.patch
    refused(kit, project, made, "not 000000000000", patch="0" * 12)
    assert kit.apply(project, made, patch=patch[:12])[0].verdict == "done"


def test_a_base_commit_that_is_gone_or_another_one_is_refused(kit: Any, project: Path, tmp_path: Path) -> None:
    made = kit.propose(project)
    kit.review(made)
    manifest = open_proposal(made).manifest
    real = project.with_name("real")
    project.rename(real)
    with pytest.raises(UserError, match="the repository is not here"):
        kit.apply(tmp_path / "elsewhere", real / made.relative_to(project))
    kit.repository(project, "[trainer]\n")
    with pytest.raises(UserError, match=r"base commit .* not in"):
        kit.apply(tmp_path / "elsewhere", real / made.relative_to(project))
    assert manifest.branch not in branches(kit, project)


def test_a_replaced_base_commit_does_not_stand_for_the_reviewed_one(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    kit.review(made)
    manifest = open_proposal(made).manifest
    (project / "train.py").write_text("print('replaced')\n")
    tree = kit.git(project, "stash", "create")
    kit.git(project, "checkout", "-q", "train.py")
    kit.git(project, "replace", manifest.base, tree)
    kit.apply(project, made)
    kit.git(project, "replace", "-d", manifest.base)
    assert kit.git(project, "show", f"{manifest.branch}:train.py") == "print('training')"


def test_the_branch_starts_at_the_reviewed_commit_though_the_project_moved_on(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    kit.review(made)
    (project / "train.py").write_text("print('later')\n")
    kit.git(project, "commit", "-qam", "Later")
    result, _ = kit.apply(project, made)
    assert "has moved on since" in result.summary
    manifest = open_proposal(made).manifest
    assert kit.git(project, "rev-parse", f"{manifest.branch}^") == manifest.base


def test_a_branch_that_is_there_is_never_moved(kit: Any, project: Path) -> None:
    made = kit.propose(project)
    kit.review(made)
    manifest = open_proposal(made).manifest
    kit.git(project, "branch", manifest.branch)
    refused(kit, project, made, "exists with something else")
    refused(kit, project, made, "exists with something else", branch="main")
    result, _ = kit.apply(project, made, branch="kernels/norm")
    assert {"what": "branch", "name": "kernels/norm"} in result.rows


@pytest.mark.parametrize("name", ["-f", "a..b", "a b", "@{-1}", "refs/", "x.lock", "a~1"])
def test_a_branch_name_that_git_would_read_otherwise_is_refused(kit: Any, project: Path, name: str) -> None:
    made = kit.propose(project)
    kit.review(made)
    refused(kit, project, made, "not a name git takes", branch=name)


def test_a_proposal_or_a_repository_outside_the_roots_is_refused(kit: Any, project: Path, tmp_path: Path) -> None:
    made = kit.propose(project)
    kit.review(made)
    refused(kit, project, made, "outside the allowed folders", roots=(str(tmp_path / "other"),))
    refused(kit, project, made, "outside the allowed folders", roots=(str(made),))
    assert kit.apply(project, made, roots=(str(project),))[0].verdict == "done"


def test_the_commit_needs_no_name_of_the_user_and_no_hook_of_the_repository_runs(
    kit: Any, project: Path, tmp_path: Path
) -> None:
    made = kit.propose(project)
    kit.review(made)
    for hook in ("reference-transaction", "post-index-change", "commit-msg", "pre-commit"):
        (project / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
        (project / ".git" / "hooks" / hook).chmod(0o755)
    kit.git(project, "config", "commit.gpgSign", "true")
    kit.git(project, "config", "user.useConfigOnly", "true")
    result, _ = kit.apply(project, made)
    assert "is new" in result.summary
    assert not (tmp_path / "ran").exists()
