"""What a worker asks of a side's process: one JSON line per command, one per reply."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from samebits.tools.schema.artifacts.rollout import Origin
from samebits.tools.schema.base import Model
from samebits.tools.schema.experiment import Rollout, Trainer, Workload
from samebits.tools.schema.results import Cell
from samebits.tools.schema.sites import CapturePlan, Edit


class How(Model):
    """In which way the same tokens are computed. The default is the plain way of each side."""

    path: Literal["decode", "prefill"] = "decode"
    """Rollout side: sampled tokens fed one by one as generated (teacher-forced decode), or each token rescored as the
    one token sampled after a prefill of all before it. The trainer has one path and ignores this."""
    concurrency: int | None = None
    """Sequences in flight at once; None: all; 1: each alone."""
    reverse: bool = False
    """Submit in the reverse order."""
    chunk: int | None = None
    """Token budget of one engine step, so that long prefills are cut; None: the engine's own setting."""
    warm_prefix: bool = False
    """Send the prompts once before, so that the prefix cache hits; False: the cache is reset first."""
    keep_cache: bool = False
    """Leave the prefix cache as the last pass left it: stale after a push without reset (a negative control)."""
    stride: int = 1
    """Prefill path: rescore every stride-th sampled token only."""
    layout: Literal["", "single", "padded", "packed"] = ""
    """Trainer: lay the sequences out so in this pass; "": as configured."""
    gradients: Literal["no", "yes", "checkpointed"] = "no"
    """Trainer: build the graph of the backward pass, and with "checkpointed" keep only the inputs of each layer. The
    backward pass is run, so that what is recomputed is."""


class Open(Model):
    """First command: load the model."""

    command: Literal["open"] = "open"
    role: Literal["rollout", "trainer"]
    config: Rollout | Trainer
    model: str
    device: Literal["cpu", "cuda"]
    taps: bool = False
    """Rollout side, compiled engines: put the opaque tap operators in before compilation."""


class Generate(Model):
    """Sample a rollout. Writes a Rollout artifact into `folder`."""

    command: Literal["generate"] = "generate"
    workload: Workload
    folder: str
    origin: Origin | None = None
    """Written into the artifact."""


class Score(Model):
    """Logprob of every sampled token of a stored rollout; optionally recording and editing on the way.

    Writes scores.safetensors (`logprob` float32 [tokens] in the rollout's order, `scored` bool [tokens]) into `folder`,
    and with a capture plan a Capture artifact `folder/capture`.
    """

    command: Literal["score"] = "score"
    rollout: str
    """Folder of the Rollout artifact."""
    how: How = How()
    folder: str
    capture: CapturePlan | None = None
    edits: tuple[Edit, ...] = ()


class Reading(Model):
    """One meaning of "the logprob of the sampled token"."""

    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Renormalised over the kept tokens."""
    top_k: int = Field(default=0, ge=0)
    row_shift: int = 0
    """Taken this many rows too late (negative: too early)."""
    count: bool = False
    """Also how many of the most probable tokens hold the mass by which the reported logprob is larger (sorts the
    vocabulary)."""


class Readings(Model):
    """Trainer side: float64 columns for closed-form causes, so that logits never leave the process.

    Writes readings.safetensors into `folder`: for reading k, `logprob.k`, `total.k`, `slope.k`, `count.k` float64
    [tokens] in the rollout's order (see tools/sides/scoring/readings.py); NaN where the row does not exist.
    """

    command: Literal["readings"] = "readings"
    rollout: str
    readings: tuple[Reading, ...]
    folder: str


class Weights(Model):
    """Digest every weight as the side's operators see it (packed weights are read back). Writes weights.json."""

    command: Literal["weights"] = "weights"
    folder: str


class Push(Model):
    """Load these weights (checkpoint names) into the live side and reset its caches."""

    command: Literal["push"] = "push"
    weights: str
    """A safetensors file, or a model folder."""
    version: int
    repair: bool = True
    """Work round the known reload defects of the engine; each one found is reported."""
    reset: bool = True
    """Reset the prefix cache. False leaves prefixes of the old weights in it (a negative control)."""


class Step(Model):
    """Trainer side: one policy-gradient update on a stored rollout (for proofs and demos). Saves the new weights."""

    command: Literal["step"] = "step"
    rollout: str
    rate: float
    save: str
    """Safetensors file with checkpoint names."""
    seed: int = 0
    """Seed of the random advantages."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """AdamW keeps its state from step to step of the same side."""


class Modules(Model):
    """The module tree: path, class, weights with digests and shapes, in execution order where known."""

    command: Literal["modules"] = "modules"
    folder: str


class Close(Model):
    command: Literal["close"] = "close"


Command = Annotated[
    Open | Generate | Score | Readings | Weights | Push | Step | Modules | Close, Field(discriminator="command")
]
COMMAND: TypeAdapter[Command] = TypeAdapter(Command)


class Done(Model):
    """The command was carried out."""

    status: Literal["done"] = "done"
    facts: dict[str, Cell] = {}
    """Small answers: counts, seconds, names of backends."""
    lines: tuple[str, ...] = ()
    """Longer facts, one per line: kernels replaced, hooks matched, defects worked round."""


class Refused(Model):
    """The command could not be carried out because of what the user gave."""

    status: Literal["refused"] = "refused"
    thing: str
    reason: str
    next_step: str


class Broken(Model):
    """The command raised; the traceback is in the side's log."""

    status: Literal["broken"] = "broken"
    message: str


Reply = Annotated[Done | Refused | Broken, Field(discriminator="status")]
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)
