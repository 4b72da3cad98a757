"""Every correction on the same mismatched rollouts, against the exact gradient of those rollouts.

The exact engine samples; the exact trainer has its bits, so its on-policy gradient g* of a batch holds no mismatch. The
stock trainer recomputes the same tokens with the same weights and other bits; with each correction it gives a gradient
g. All differences between g and g* are the stock trainer's: of its probabilities, and of its own backward pass.

Legend: M fed tokens of all sequences, L routed layers, R experts per token, N sampled tokens, G all parameters.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.measure.gap import stats
from samebits.tools.rl import corrections
from samebits.tools.rl.child import Plan, sides
from samebits.tools.rl.loop import Sampled, learn, rewarded
from samebits.tools.rl.task import draw, sampling_seeds
from samebits.tools.schema.artifacts.rl import Compared, CorrectionRow
from samebits.tools.schema.errors import UserError
from samebits.tools.sides.transformers import replay

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from samebits.tools.job.job import Job
    from samebits.tools.rl.policy import Policy
    from samebits.tools.schema.experiment import Correction, Rl
    from samebits.tools.sides.vllm.live import Drawn, LiveEngine, Routing

COMPARED = "compared.json"


@dataclass(slots=True)
class Tally:
    """One correction over the batches."""

    cosine: list[float] = field(default_factory=list)
    relative: list[float] = field(default_factory=list)
    difference_G: torch.Tensor | None = None
    truth_G: torch.Tensor | None = None
    squares: float = 0.0
    """Sum over batches of |g - g*|^2."""
    k3: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    truncated: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    nothing: int = 0
    """Batches of which the correction left no gradient: they have no cosine."""

    def add(self, g_G: torch.Tensor, truth_G: torch.Tensor) -> None:
        """One batch; its exact gradient is not zero."""
        difference_G = g_G - truth_G
        square, size = _dot(difference_G, difference_G), _dot(truth_G, truth_G) ** 0.5
        own = _dot(g_G, g_G) ** 0.5
        if own:
            self.cosine.append(_dot(g_G, truth_G) / (own * size))
        else:
            self.nothing += 1
        self.relative.append(square**0.5 / size)
        self.squares += square
        self.difference_G = difference_G if self.difference_G is None else self.difference_G + difference_G
        self.truth_G = truth_G.clone() if self.truth_G is None else self.truth_G + truth_G

    def row(self, name: str, note: str = "") -> CorrectionRow:
        """Over all batches; NaN: the noise of a single one, the cosine where no batch has a gradient."""
        count = len(self.relative)
        assert self.difference_G is not None
        assert self.truth_G is not None
        total, size = _dot(self.difference_G, self.difference_G), _dot(self.truth_G, self.truth_G) ** 0.5 / count
        bias = total**0.5 / count
        # Squared standard error of the mean difference, summed over its elements.
        chance = max(0.0, self.squares - total / count) / (count * (count - 1)) if count > 1 else float("nan")
        if self.nothing:
            note += f"{'; ' if note else ''}drops everything in {self.nothing} of {count} batches: no cosine there"
        return CorrectionRow(
            name=name,
            cosine=_mean(self.cosine),
            relative=_mean(self.relative),
            bias=bias / size,
            noise=chance**0.5 / size,
            k3=_mean(self.k3),
            kept=_mean(self.kept),
            truncated=_mean(self.truncated),
            seconds=_median(self.seconds),
            note=note,
        )


def _dot(a_G: torch.Tensor, b_G: torch.Tensor) -> float:
    return float(torch.dot(a_G.double(), b_G.double()))


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


@dataclass(slots=True)
class Comparison:
    """What the batches add to."""

    engine: LiveEngine
    policy: Policy
    settings: Rl
    kernels: str
    tallies: dict[str, Tally] = field(default_factory=dict)
    reported: list[torch.Tensor] = field(default_factory=list)
    exact: list[torch.Tensor] = field(default_factory=list)
    stock: list[torch.Tensor] = field(default_factory=list)
    sampling: dict[str, list[float]] = field(default_factory=dict)
    routed: list[tuple[int, int]] = field(default_factory=list)
    """Per batch: token rows times layers at which the stock trainer chooses other experts, and all of them."""
    source: str = ""
    left_out: int = 0
    """Batches whose exact gradient is zero: nothing can be measured against it."""

    def clock(self) -> float:
        """Seconds: of CPU on a CPU, where other work would be in the time; on CUDA of the device's work."""
        if self.policy.side.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.monotonic()

    def batch(self, drawn: Drawn, batch: Sampled) -> None:
        """One batch: the truth by the exact trainer, then everything else by the stock one. One without an exact
        gradient is counted and nothing else.
        """
        routing = drawn.routing
        truth = self._truth(batch, routing)
        if not all(bool(truth_G.any()) for truth_G in truth.values()):
            self.left_out += 1
            return
        self._again(batch, truth["none"])
        self.policy.unpatch()
        for name in corrections.NAMES:
            self._one(name, batch, name, truth["flash" if name == "flash" else "none"], nullcontext)
        if routing is not None:
            again = lambda: replay.replayed(  # noqa: E731
                self.policy.side.module, routing.id_MLR, rows_of(self.policy, batch)
            )
            self._one("r3", batch, "none", truth["none"], again)
            self._one("r3+tis", batch, "tis", truth["none"], again)
        self.policy.patch(self.kernels)
        if routing is not None:
            self.routed.append(_other_experts(self.own_experts, routing.id_MLR))
            self.source = routing.source

    def _truth(self, batch: Sampled, routing: Routing | None) -> dict[str, torch.Tensor]:
        """The exact gradient of both losses; checks that the exact trainer has the rollout's bits and experts.

        Raises:
            UserError: it has not, so that there is no truth.
        """
        begun = self.clock()
        with replay.chosen(self.policy.side.module) as notes:
            exact_N = self.policy.recompute(batch.data)
        if not stats(batch.data.logprob_N, exact_N, batch.data.valid_N).exact:
            raise UserError(
                "the exact trainer", "differs from the rollouts: it is no truth here", "samebits measure says where"
            )
        if routing is not None:
            other, total = _other_experts(notes, routing.id_MLR)
            if other:
                raise UserError(
                    "the exact trainer", f"chooses other experts at {other} of {total} places", "report this model"
                )
        self.exact_N = exact_N
        truth = {}
        for name in ("none", "flash"):
            weights, _ = learn(self.policy, batch, exact_N, self.settings.model_copy(update={"correction": name}))
            # With the same bits on both sides every weight is 1 and nothing is dropped.
            assert weights.mean == weights.kept == 1.0, f"{name} is not the identity on exact logprobs"
            truth[name] = self.policy.flat_gradient()
            if name == "none":
                self.took = self.clock() - begun
        return truth

    def _again(self, batch: Sampled, truth_G: torch.Tensor) -> None:
        """The exact trainer a second time, and the logprobs of a batch that counts."""
        self.exact.append(self.exact_N)
        self.reported.append(batch.data.logprob_N)
        again = self.tallies.setdefault("exact trainer", Tally())
        learn(self.policy, batch, self.exact_N, self.settings.model_copy(update={"correction": "none"}))
        again.add(self.policy.flat_gradient(), truth_G)
        again.seconds.append(self.took)
        again.k3.append(0.0)
        again.kept.append(1.0)
        again.truncated.append(0.0)

    def _one(
        self,
        label: str,
        batch: Sampled,
        name: Correction,
        truth_G: torch.Tensor,
        around: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        """Recompute, weigh, gradient: as a training loop would with this correction."""
        tally = self.tallies.setdefault(label, Tally())
        begun = self.clock()
        with around():
            trainer_N = self.policy.recompute(batch.data) if label != "none" else self._plain(batch)
            if label == "none":
                begun = self.clock()  # without a correction nothing is recomputed
            weights, _ = learn(self.policy, batch, trainer_N, self.settings.model_copy(update={"correction": name}))
        tally.seconds.append(self.clock() - begun)
        tally.add(self.policy.flat_gradient(), truth_G)
        used_N = weights.weight_N > 0
        tally.k3.append(stats(batch.data.logprob_N, trainer_N, used_N).k3)
        tally.kept.append(weights.kept)
        tally.truncated.append(weights.truncated / len(trainer_N))

    def _plain(self, batch: Sampled) -> torch.Tensor:
        with replay.chosen(self.policy.side.module) as notes:
            trainer_N = self.policy.recompute(batch.data)
        self.stock.append(trainer_N)
        self.own_experts = notes
        return trainer_N

    own_experts: list[list[torch.Tensor]] = field(default_factory=list)
    """What the stock trainer chose in the last batch."""
    exact_N: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """Logprobs of the exact trainer in the last batch, and the seconds that they and their gradient took."""
    took: float = 0.0


def _other_experts(notes: list[list[torch.Tensor]], id_MLR: torch.Tensor) -> tuple[int, int]:
    """(row, layer) pairs at which other experts were chosen, as sets; and all pairs. Passes in the batch's order."""
    own_MLR = torch.stack([torch.cat(passes) for passes in notes], dim=1)
    other_ML = (own_MLR.sort(-1).values != id_MLR.sort(-1).values).any(-1)
    return int(other_ML.sum()), other_ML.numel()


def rows_of(policy: Policy, batch: Sampled) -> Callable[[], torch.Tensor]:
    """Index among all fed tokens of every row of the pass that is running; padding rows get the first."""
    offsets = torch.tensor([0, *(len(sequence.tokens) for sequence in batch.data.sequences)]).cumsum(0)

    def rows() -> torch.Tensor:
        at = policy.side.current()
        sequence_T = at.sequence_T.long()
        index_T: torch.Tensor = offsets[policy.first + sequence_T.clamp(min=0)] + at.position_T.long()
        return torch.where(sequence_T >= 0, index_T, 0)

    return rows


def compare(plan: Plan, job: Job) -> None:
    """Measure; writes compared.json into the plan's folder."""
    experiment = plan.experiment
    settings = experiment.rl
    job.emit("corrections", "loading the engine and the trainer")
    routed = "moe" in settings.family if not experiment.rollout.model else False
    more = {"max_logprobs": settings.top} | ({"enable_prefix_caching": False} if routed else {})
    engine, policy, task = sides(plan.model_copy(update={"arm": "exact"}), more)
    found = Comparison(engine, policy, settings, plan.kernels)
    for number in range(settings.batches):
        prompts = [
            prompt
            for prompt in draw(task, settings.prompts, experiment.workload.seed, "compare", number)
            for _ in range(settings.group)
        ]
        seeds = sampling_seeds(len(prompts), experiment.workload.seed, "compare", number)
        drawn = _sample_timed(found, prompts, seeds, task.new_tokens, experiment.workload.temperature, routed)
        found.batch(drawn, rewarded(drawn, task))
        job.emit("corrections", "gradients of every correction", number + 1, settings.batches)
    (Path(plan.folder) / COMPARED).write_text(_compared(found).model_dump_json(indent=1), encoding="utf-8")


def _sample_timed(
    found: Comparison, prompts: list[list[int]], seeds: list[int], new_tokens: int, temperature: float, routed: bool
) -> Drawn:
    """The batch with everything asked for, after the same batch without: what returning more costs the engine.

    Raises:
        UserError: asking for more changed the tokens.
    """
    engine = found.engine
    begun = found.clock()
    plain = engine.sample(prompts, seeds, new_tokens=new_tokens, temperature=temperature)
    middle = found.clock()
    drawn = engine.sample(
        prompts, seeds, new_tokens=new_tokens, temperature=temperature, top=found.settings.top, routed=routed
    )
    for name, seconds in (("plain", middle - begun), ("more", found.clock() - middle)):
        found.sampling.setdefault(name, []).append(seconds)
    same = torch.equal(plain.data.logprob_N.view(torch.int32), drawn.data.logprob_N.view(torch.int32))
    if plain.data.sequences != drawn.data.sequences or not same:
        raise UserError("the engine", "samples other tokens when asked for more logprobs", "report this engine")
    return drawn


def _compared(found: Comparison) -> Compared:
    """Raises UserError where no batch has an exact gradient."""
    settings, count = found.settings, len(found.exact)
    if not count:
        raise UserError(
            f"all {found.left_out} batches of {settings.prompts} prompts x {settings.group} answers",
            "have an exact gradient of zero, so that nothing can be measured: all answers to a prompt have the same "
            "reward",
            f"raise [rl] prompts or group, or give another [rl] warmup_steps (here {settings.warmup_steps}), so that "
            "some answers are better than others",
        )
    reported_N, exact_N, stock_N = (torch.cat(parts) for parts in (found.reported, found.exact, found.stock))
    valid_N = torch.ones(len(reported_N), dtype=torch.bool)
    extra = _median(found.sampling["more"]) - _median(found.sampling["plain"])
    notes = {
        "exact trainer": "its gradient a second time: the same bits, so this method sees no difference where none is",
        "none": "no recompute is needed",
        "flash": "against the exact gradient of its own loss (batch baseline, mean over sequences)",
        "centering": f"f = min(r, cap), head of {found.settings.top} tokens; the engine takes {extra:.3f} s more",
        "r3": "routing replayed, no weights",
    }
    said = [f"rollouts with more logprobs{' and routing' if found.routed else ''}: {extra:+.3f} s per batch (median)"]
    if found.left_out:
        said.insert(
            0, f"{left_out_in_words(found.left_out, found.left_out + count)}; every row is about the other {count}"
        )
    if count == 1:
        said.insert(0, "one batch alone: how much of the bias is chance cannot be told")
    if found.routed:
        other, total = (sum(pair[k] for pair in found.routed) for k in (0, 1))
        said.append(f"stock router: other experts at {other} of {total} places (token rows times layers)")
        said.append(f"routing {found.source}; the exact trainer's own choice is the same everywhere")
    return Compared(
        rows=tuple(tally.row(name, notes.get(name, "")) for name, tally in found.tallies.items()),
        mismatch=stats(reported_N, stock_N, valid_N),
        truth=stats(reported_N, exact_N, valid_N),
        notes=tuple(said),
        left_out=found.left_out,
    )


def left_out_in_words(left_out: int, batches: int) -> str:
    """What a report says of batches without an exact gradient."""
    return (
        f"{left_out} of {batches} batches left out: their exact gradient is zero (all answers to a prompt have the "
        "same reward)"
    )
