"""`samebits apply`: writes what a person approved to a new branch or a patch file. The work tree and the index are
never touched, and nothing that anybody wrote down is believed: every digest is computed again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.propose.change import digest_of, sha256
from samebits.tools.propose.git import GitError, Repository, allowed, inside, repository_of
from samebits.tools.schema import reviews
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.proposals import open_proposal
from samebits.tools.schema.results import Result

if TYPE_CHECKING:
    from samebits.tools.job.job import Job
    from samebits.tools.schema.artifacts.review import ReviewManifest
    from samebits.tools.schema.proposals import Proposal
    from samebits.tools.schema.requests import ApplyRequest
    from samebits.tools.schema.results import Cell

FILE = "approved.patch"


def run_apply(request: ApplyRequest, job: Job) -> Result:
    """Check everything, then write once.

    Raises:
        UserError: not reviewed, rejected, anything not what was approved, a base commit that is gone, a branch of that
        name.
    """
    folder = Path(request.proposal)
    inside(folder, request.roots, "proposal")
    proposal = open_proposal(folder)
    manifest = proposal.manifest
    if request.patch and not manifest.patch.startswith(request.patch):
        reason = f"its patch is {manifest.patch[:12]}, not {request.patch[:12]}"
        raise UserError(str(folder), reason, "give the patch digest that propose gave for this proposal")
    job.emit("check", "the approval, and every digest it is bound to")
    review = approved(proposal)
    repository = repository_of_proposal(proposal, request.roots)
    check_patch(proposal, repository)
    rows: tuple[dict[str, Cell], ...] = tuple({"what": file.change, "name": file.path} for file in manifest.paths)
    if request.to == "patch":
        (job.folder / FILE).write_bytes(proposal.patch.encode())
        return Result(
            verdict="done",
            summary=f"the approved patch ({review.reviewer}, {review.surface}) is a file; nothing else was written.",
            ids={"patch": FILE},
            rows=rows,
            total=len(rows),
            next=f"git -C {manifest.repository} apply {job.folder / FILE}",
        )
    branch = request.branch or manifest.branch
    job.emit("write", f"branch {branch}")
    commit, new = write_branch(proposal, review, repository, branch)
    moved = head_of(repository) != manifest.base
    note = " The branch that is checked out has moved on since: merge, or rebase and measure again." if moved else ""
    made = "is new" if new else "was there already, with this very commit"
    summary = (
        f"branch {branch} {made}: commit {commit[:12]} on {manifest.base[:12]}, approved by {review.reviewer} "
        f"({review.surface}). Work tree, index and checked-out branch are as they were.{note}"
    )
    return Result(
        verdict="done",
        summary=summary,
        rows=(*rows, {"what": "branch", "name": branch}, {"what": "commit", "name": commit}),
        total=len(rows) + 2,
        next=f"git merge {branch} where it belongs, then samebits measure, then samebits gate",
    )


def approved(proposal: Proposal) -> ReviewManifest:
    """The approval of this very proposal.

    Raises:
        UserError: there is none, a person said no, or the record is about something else.
    """
    name = f"{proposal.folder.parent.name}/{proposal.folder.name}"
    review = reviews.find(proposal)
    if review is None:
        raise UserError(
            f"proposal {name}", "not reviewed", f"ask the person to run `samebits review {name}` in their own terminal"
        )
    if review.decision != "approved":
        said = f": {review.note}" if review.note else ""
        reason = f"rejected by {review.reviewer}{said}"
        raise UserError(f"proposal {name}", reason, "change the candidate as they say, build it, propose again")
    return review


def repository_of_proposal(proposal: Proposal, roots: tuple[str, ...]) -> Repository:
    """The repository, with the base commit as it was.

    Raises:
        UserError: gone, moved, outside the roots, or without that commit.
    """
    manifest = proposal.manifest
    top = Path(manifest.repository)
    again = "propose again"
    if not top.is_dir():
        raise UserError(manifest.repository, "the repository is not here", f"{again} where it is")
    repository = repository_of(top, manifest.repository)
    if repository.top != top:
        raise UserError(manifest.repository, "not the top of a repository any more", again)
    allowed(repository, roots)
    try:
        base = repository.line("rev-parse", "--verify", f"{manifest.base}^{{commit}}")
        tree = repository.line("rev-parse", "--verify", f"{base}^{{tree}}")
    except GitError as error:
        raise UserError(f"base commit {manifest.base[:12]}", f"not in {top}", again) from error
    if (base, tree) != (manifest.base, manifest.base_tree):
        raise UserError(f"base commit {manifest.base[:12]}", "not what it was when this was proposed", again)
    return repository


def check_patch(proposal: Proposal, repository: Repository) -> None:
    """The patch, applied, must give the tree, the files and the candidate that were approved.

    Raises:
        UserError: it gives something else.
    """
    manifest, patch = proposal.manifest, proposal.patch.encode()
    what = f"patch {manifest.patch[:12]}"
    try:
        with repository.scratch() as scratch:
            tree = scratch.patched(manifest.base_tree, patch)
            names = scratch.changed(manifest.base_tree, tree)
            blobs = {name: scratch.blob(tree, name) for name in names}
            contents = candidate_files(scratch, tree, manifest.folder, manifest.source)
    except GitError as error:
        raise UserError(what, f"does not apply to {manifest.base[:12]} ({error})", "propose again") from error
    digests = {name: sha256(found[1]) for name, found in blobs.items() if found is not None}
    modes = {found[0] for found in blobs.values() if found is not None}
    wrong = (
        tree != manifest.tree
        or digests != {file.path: file.after for file in manifest.paths}
        or not modes <= {"100644", "100755"}
        or digest_of(contents) != manifest.candidate_digest
    )
    if wrong:
        raise UserError(what, "gives other files than the proposal names", "propose again")


def candidate_files(repository: Repository, tree: str, folder: str, source: str) -> list[bytes]:
    """candidate.toml and the source, out of a tree."""
    found = [repository.blob(tree, f"{folder}/{name}") for name in ("candidate.toml", source)]
    return [data for _, data in filter(None, found)]


def write_branch(proposal: Proposal, review: ReviewManifest, repository: Repository, branch: str) -> tuple[str, bool]:
    """The commit, and whether the branch is new. The same approval gives the same commit.

    Raises:
        UserError: not a branch name, or a branch of that name with something else.
    """
    manifest = proposal.manifest
    if branch.startswith("-") or not _is_branch_name(repository, branch):
        raise UserError(f"branch {branch!r}", "not a name git takes", "give another one")
    reference = f"refs/heads/{branch}"
    with repository.scratch(keep_objects=True) as scratch:
        tree = scratch.patched(manifest.base_tree, proposal.patch.encode())
        assert tree == manifest.tree
        commit = scratch.line(
            "commit-tree", "--no-gpg-sign", "-p", manifest.base, tree, given=message(proposal, review).encode(),
            env=identity(repository, review),
        )  # fmt: skip
    try:
        repository.run("update-ref", "--no-deref", "-m", "samebits apply", reference, commit, "")
    except GitError as error:
        try:
            there = repository.line("rev-parse", "--verify", "--quiet", reference)
        except GitError:
            raise UserError(f"branch {branch!r}", f"cannot be written ({error})", "give another branch name") from error
        if there != commit:
            raise UserError(f"branch {branch!r}", "exists with something else", "give another branch name") from error
        return commit, False
    return commit, True


def message(proposal: Proposal, review: ReviewManifest) -> str:
    """Of the commit."""
    manifest = proposal.manifest
    lines = [
        f"Kernel {manifest.candidate} for {manifest.operator}",
        "",
        *([f"Review note: {review.note}", ""] if review.note else []),
        f"Reviewed-by: {review.reviewer} (samebits {review.surface})",
        f"Candidate: sha256 {manifest.candidate_digest}",
        f"Gate report: sha256 {manifest.made_from['candidate_gate']}",
        f"Proposal: sha256 {proposal.digest}",
    ]
    return "\n".join(lines) + "\n"


def identity(repository: Repository, review: ReviewManifest) -> dict[str, str]:
    """Author, committer and date: git's own settings where there are any, else the reviewer."""
    stamp = f"{int(review.time)} +0000"
    found = {"GIT_AUTHOR_DATE": stamp, "GIT_COMMITTER_DATE": stamp}
    try:
        repository.run("var", "GIT_COMMITTER_IDENT", env=found)
        repository.line("config", "user.email")
    except GitError:
        for role in ("AUTHOR", "COMMITTER"):
            found |= {f"GIT_{role}_NAME": review.reviewer, f"GIT_{role}_EMAIL": f"{review.reviewer}@localhost"}
    return found


def head_of(repository: Repository) -> str:
    """The commit that is checked out now."""
    try:
        return repository.line("rev-parse", "--verify", "HEAD^{commit}")
    except GitError:
        return ""


def _is_branch_name(repository: Repository, branch: str) -> bool:
    try:
        return repository.line("check-ref-format", "--branch", branch) == branch
    except GitError:
        return False
