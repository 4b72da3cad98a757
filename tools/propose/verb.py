"""`samebits propose`: a patch with its evidence, bound by digests, waiting for a person."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.kernels.candidate import describe
from samebits.kernels.contract_version import CONTRACT_VERSION
from samebits.tools.propose import repro as repros
from samebits.tools.propose.change import change_of, sha256
from samebits.tools.propose.git import allowed, inside
from samebits.tools.schema import gates, reader
from samebits.tools.schema.artifacts.candidate_gate import CandidateGate
from samebits.tools.schema.artifacts.proposal import GATE, PATCH, REPRO, ProposalManifest
from samebits.tools.schema.artifacts.repro import ReproManifest
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.proposals import check_gate, open_proposal
from samebits.tools.schema.results import Result
from samebits.tools.store import artifact, fingerprint

if TYPE_CHECKING:
    from samebits.kernels.candidate import Candidate
    from samebits.tools.job.job import Job
    from samebits.tools.propose.change import Change
    from samebits.tools.schema.artifacts.proposal import ReproEvidence
    from samebits.tools.schema.requests import ProposeRequest
    from samebits.tools.schema.results import Cell


def run_propose(request: ProposeRequest, job: Job) -> Result:
    """Check the candidate, its gate and its repository, run the repro before and after, write the Proposal.

    Raises:
        UserError: anything a proposal must not be made of.
    """
    candidate = candidate_of(request)
    gate_folder, config = Path(request.gate), Path(request.config)
    for path, what in ((gate_folder, "gate"), (config, "config"), (candidate.folder, "candidate")):
        inside(path, request.roots, what)
    gate = artifact.read(gate_folder, CandidateGate)
    check_gate(gate, candidate.digest, f"candidate {candidate.folder}")
    if gate.operator != candidate.operator or gate.contract_version != CONTRACT_VERSION:
        said = f"operator {gate.operator}, contract {gate.contract_version}"
        raise UserError(str(gate_folder), f"a report for {said}", "build the candidate again with this samebits")
    job.emit("change", f"{candidate.name}: the patch against the commit that is checked out")
    change = change_of(candidate, config, request.sides)
    allowed(change.repository, request.roots)
    texts = {PATCH: change.patch.decode("utf-8"), GATE: (gate_folder / artifact.MANIFEST).read_text(encoding="utf-8")}
    made_from = {"candidate_gate": artifact.identity(gate_folder)}
    shown = None
    if request.repro:
        folder = Path(request.repro)
        inside(folder, request.roots, "repro")
        made_from["repro"] = artifact.identity(folder)
        demanded = "required" in (request.sandbox, reader.read(config).gate.sandbox)
        boxed = demanded or (gate.sandbox is not None and gate.sandbox.whole)
        shown = repros.evidence(
            folder, artifact.read(folder, ReproManifest), candidate, job, required=demanded, boxed=boxed
        )
        for name, source in ((REPRO, artifact.MANIFEST), ("repro.py", "repro.py")):
            texts[name] = (folder / source).read_text(encoding="utf-8")
    manifest = manifest_of(request, candidate, change, made_from, shown)
    made = job.new("proposal")
    artifact.write(made, manifest, texts=texts)
    proposal = open_proposal(made)
    return result_of(proposal.manifest, proposal.gate, job.folder.name)


def candidate_of(request: ProposeRequest) -> Candidate:
    """The candidate.

    Raises:
        UserError: its candidate.toml cannot be used.
    """
    try:
        return describe(Path(request.candidate))
    except ValueError as error:
        raise UserError(request.candidate, str(error), "mend candidate.toml, and build it") from error


def manifest_of(
    request: ProposeRequest,
    candidate: Candidate,
    change: Change,
    made_from: dict[str, str],
    repro: ReproEvidence | None,
) -> ProposalManifest:
    """All that the proposal is bound to."""
    return ProposalManifest(
        made_from=made_from,
        environment=fingerprint.environment(),
        created=time.time(),
        why=request.why.strip(),
        candidate=candidate.name,
        operator=candidate.operator,
        candidate_digest=candidate.digest,
        folder=change.folder,
        source=candidate.source.name,
        config=change.config,
        sides=request.sides,
        repository=str(change.repository.top),
        base=change.base,
        base_subject=change.base_subject,
        base_tree=change.base_tree,
        tree=change.tree,
        patch=sha256(change.patch),
        paths=change.files,
        left_out=change.left_out,
        repro=repro,
        branch=f"samebits/{candidate.name}-{candidate.digest[:8]}",
    )


def result_of(manifest: ProposalManifest, gate: CandidateGate, job: str) -> Result:
    """The flat answer."""
    rows: list[dict[str, Cell]] = [{"what": file.change, "name": file.path} for file in manifest.paths]
    green = sum(leg.outcome.status == "green" for leg in gate.legs)
    rows.append({"what": "gate", "name": f"{green} of {len(gate.legs)} legs green, none red, on {gate.device}"})
    if manifest.repro is not None:
        rows += [
            {"what": f"repro {name}", "name": f"{run.words} [{run.sandbox.words}]" if run.sandbox else run.words}
            for name, run in (("before", manifest.repro.before), ("after", manifest.repro.after))
        ]
    timing = next((leg.outcome for leg in gate.legs if leg.name == "time"), None)
    if timing is not None and timing.status == "green":
        rows.append({"what": "time", "name": timing.evidence})
    lacks = "".join(f" {said[0].upper()}{said[1:]}." for said in lacking(manifest, gate))
    left = f" Not part of it: {', '.join(manifest.left_out)}." if manifest.left_out else ""
    summary = (
        f"{manifest.candidate} for {manifest.operator}, {len(manifest.paths)} files against commit "
        f"{manifest.base[:12]}; patch sha256 {manifest.patch}.{left}{lacks} It waits for a person: "
        "nothing is applied before one approved this patch."
    )
    following = (
        f"ask the person to run `samebits review` in a terminal of their own and decide on {job}/proposal; then "
        f"samebits apply {job}/proposal --patch {manifest.patch[:12]}"
    )
    return Result(
        verdict="done", summary=summary, ids={"proposal": "proposal"}, rows=tuple(rows), total=len(rows), next=following
    )


def lacking(manifest: ProposalManifest, gate: CandidateGate) -> list[str]:
    """What a reviewer will not see, or not see for sure."""
    said = []
    if manifest.repro is None:
        said.append("no repro was given, so what it repairs is not shown")
    else:
        runs = {"before": manifest.repro.before, "after": manifest.repro.after}
        said += [f"the repro {name} was not run" for name, run in runs.items() if run.status == "not_run"]
        said += [f"the repro {name} ran {run.unsandboxed}" for name, run in runs.items() if run.unsandboxed]
    if all(leg.name != "time" or leg.outcome.status != "green" for leg in gate.legs):
        said.append("it was not timed")
    if not gates.made_here(manifest.made_from["candidate_gate"]):
        said.append(gates.UNSEALED)
    return said
