"""What a verb asks for: one model per verb, one union, written to request.json of a job folder."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, TypeAdapter

from samebits.tools.schema.base import Model
from samebits.tools.schema.experiment import Experiment


def _digest_start(text: str) -> str:
    if not re.fullmatch(r"([0-9a-f]{12,64})?", text):
        raise ValueError("must be 12 to 64 hex digits, the beginning of a sha256")
    return text


class InspectRequest(Model):
    """What is installed here, and can this experiment run?"""

    kind: Literal["inspect"] = "inspect"
    experiment: Experiment
    foreign: bool = True
    """Import python: sides, which runs their code; False: they are not looked at."""


class MeasureRequest(Model):
    """Rollout, recompute, GapReport: steps 1 to 3 of docs/how-a-difference-is-found.md."""

    kind: Literal["measure"] = "measure"
    experiment: Experiment
    rollout: str | None = None
    """Use this stored rollout artifact or rows file instead of generating one."""
    axes: tuple[str, ...] | None = None
    """Self-consistency axes to run; None: all that the sides offer; (): none."""


class CaptureRequest(Model):
    """Record taps of one side over a rollout."""

    kind: Literal["capture"] = "capture"
    experiment: Experiment
    side: Literal["rollout", "trainer"]
    rollout: str | None = None


class DiffRequest(Model):
    """Find, prove and order every operator that differs by itself: steps 4 to 6 of
    docs/how-a-difference-is-found.md."""

    kind: Literal["diff"] = "diff"
    experiment: Experiment
    rollout: str | None = None
    against: Literal["trainer", "repeat", "batch", "decode_prefill", "chunked_prefill", "prefix_hit"] = "trainer"
    """The other side, or the rollout side itself: asked again in the same way, or computed another way (each sequence
    alone, by prefill, in chunks, from the cache)."""
    max_operators: int = Field(default=64, ge=1)
    """Prove up to this many operators one by one; what is beyond is put right in a few steps of several."""


class MinimizeRequest(Model):
    """Cut one operator of a divergence out into a folder that runs by itself."""

    kind: Literal["minimize"] = "minimize"
    divergence: str
    """Path of a Divergence artifact."""
    operator: int | None = Field(default=None, ge=0)
    """Index in its work list; None: the first that can be cut out."""


class BuildRequest(Model):
    """Put a candidate kernel through the gate for candidates."""

    kind: Literal["build"] = "build"
    candidate: str
    """Folder with candidate.toml and one source, or the name of a library operator."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    timing: bool = True
    """Run the timing leg when all others are green."""
    sandbox: Literal["auto", "required"] = "auto"
    """ "required": an error where this machine gives no sandbox; "auto": the answer says "UNSANDBOXED"."""
    memory_limit_mib: int = Field(default=0, ge=0)
    """What the candidate's processes may hold; 0: three quarters of the machine's memory."""


class GateRequest(Model):
    """Every axis exact, with a control that fails; RegressionReport."""

    kind: Literal["gate"] = "gate"
    experiment: Experiment
    rollout: str | None = None
    """Use this stored rollout artifact or rows file instead of generating one."""
    axes: tuple[str, ...] = ()
    """Only these; (): [gate] axes, and when that is empty all."""
    require: tuple[str, ...] = ()
    """Must have run, on top of [gate] require."""
    resume: str = ""
    """Folder of an earlier piece of this gate (or its job folder): axes it has a verdict on are taken over."""
    tiny: Literal["", "qwen3", "qwen3_tied", "llama", "qwen3_moe"] = ""
    """Use a tiny random model of this family on CPU, vLLM's operators in its trainer, in place of the experiment's
    sides."""


class RlRequest(Model):
    """A small RL loop with a stock arm and an exact one; RlReport."""

    kind: Literal["rl"] = "rl"
    experiment: Experiment
    what: Literal["train", "corrections", "stale"] = "train"
    """train: both arms. corrections: every correction measured against the exact gradient. stale: both arms at every
    lag of [rl] lags."""
    resume: str = ""
    """Job folder of an earlier run of the same experiment: go on from its last checkpoints."""
    seconds: float = Field(default=0.0, ge=0)
    """Wall time after which the arms stop with a checkpoint, a report and no verdict, each with its share; 0: none."""


class ProposeRequest(Model):
    """Make a patch of a candidate that passed its gate, with its evidence, for a person to review."""

    kind: Literal["propose"] = "propose"
    candidate: str
    """Folder with candidate.toml and one source, inside a git repository."""
    gate: str
    """Path of its CandidateGate artifact."""
    repro: str = ""
    """Path of the Repro artifact it answers."""
    config: str
    """Path of samebits.toml, in the same repository."""
    sides: tuple[Literal["rollout", "trainer"], ...] = ("trainer",)
    """Whose `kernels` line names the candidate."""
    why: str = Field(default="", max_length=4000)
    sandbox: Literal["auto", "required"] = "auto"
    """ "required", here or in `config`: repro.py does not run without one."""
    roots: tuple[str, ...] = ()
    """Everything read must lie below one of these; (): anywhere."""


class ApplyRequest(Model):
    """Write what a person approved to a branch, or to a patch file in the job's folder."""

    kind: Literal["apply"] = "apply"
    proposal: str
    """Path of a Proposal artifact."""
    patch: Annotated[str, AfterValidator(_digest_start)] = ""
    """Beginning of the sha256 of the patch that is meant; empty: the proposal's."""
    to: Literal["branch", "patch"] = "branch"
    branch: str = ""
    """Name of the new branch; empty: the proposal's."""
    roots: tuple[str, ...] = ()


class DemoRequest(Model):
    """The story of the README on a tiny model, each number live."""

    kind: Literal["demo"] = "demo"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    family: Literal["qwen3", "llama"] = "qwen3"


Request = Annotated[
    InspectRequest
    | MeasureRequest
    | CaptureRequest
    | DiffRequest
    | MinimizeRequest
    | BuildRequest
    | GateRequest
    | ProposeRequest
    | ApplyRequest
    | RlRequest
    | DemoRequest,
    Field(discriminator="kind"),
]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
