"""What the axes of one gate share: open sides, the rollout, plain scores, and how to disturb a pass.

Legend: N sampled tokens in all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from samebits.tools.gate.regression import judge
from samebits.tools.gate.regression.changed import Nudged, nudge
from samebits.tools.measure import gap
from samebits.tools.measure.could_fail import first_output
from samebits.tools.schema.artifacts.capture import CaptureManifest
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import How, Push
from samebits.tools.schema.sites import CapturePlan, Flip
from samebits.tools.sides import rollout_store
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

    from samebits.tools.gate.regression.changed import Changed
    from samebits.tools.gate.regression.company import Company
    from samebits.tools.job.rollouts import Source
    from samebits.tools.job.sides import Role, Sides
    from samebits.tools.measure.ways import Variant
    from samebits.tools.schema.artifacts.capture import Tap
    from samebits.tools.schema.artifacts.regression import ControlRow
    from samebits.tools.sides.protocol import RolloutData, Scores, Sequence

    At = Callable[[Sequence], int | None]
    Coverage = Literal["fast", "full"]

FLIPPED = 8
"""Sequences in which a control moves elements, so that rounding does not swallow all of them."""
COLUMNS = 16
"""Elements it moves in a row; more where there are fewer sequences."""


def last_of_prompt(sequence: Sequence) -> int | None:
    """Where a change reaches every sampled token."""
    return len(sequence.prompt) - 1


@dataclass(slots=True)
class Bench:
    """One gate at work."""

    sides: Sides
    source: Source
    plain: dict[Role, Scores] = field(default_factory=dict)
    """The plain way of each side; without the rollout side when the rollout is a file."""
    changed: Changed | None = None
    """Other weights for the same model, once made."""
    with_changed: Scores | None = None
    """The engine's logprobs after those were pushed."""
    edges: tuple[Path, Scores] | None = None
    """A made-up rollout whose lengths lie around edges, and the engine's logprobs of it."""
    modes: tuple[list[Path], list[Scores]] | None = None
    """Two rollouts of other temperatures, and the engine's logprobs of them."""
    _taps: dict[Role, Tap | str] = field(default_factory=dict)
    _nudged: Nudged | None = None

    @property
    def data(self) -> RolloutData:
        """The rollout."""
        return self.source.data

    @property
    def valid(self) -> int:
        """Valid tokens."""
        return int(self.data.valid_N.sum())

    @property
    def min_tokens(self) -> int:
        """[gate] min_tokens: what each comparison needs."""
        return self.sides.experiment.gate.min_tokens

    @property
    def coverage(self) -> Coverage:
        """[gate] coverage."""
        return self.sides.experiment.gate.coverage

    def fact(self, name: str) -> str | int | float | bool | None:
        """What the rollout side said about itself when it was opened."""
        return self.described("rollout").get(name)

    def described(self, role: Role) -> Mapping[str, str | int | float | bool | None]:
        """What a side said about itself when it was first opened; it may be closed by now."""
        done = self.sides.described.get(role) or self.sides.session(role).opened
        return {} if done is None else done.facts

    def used(self, *scores: Scores) -> torch.Tensor:
        """Valid tokens that all of these scored, bool [N]."""
        used_N = self.data.valid_N.clone()
        for one in scores:
            used_N &= one.scored_N
        return used_N

    def compare(self, tried: judge.Tried, words: str, a: Scores, b: Scores, due: int | None = None) -> None:
        """Add one comparison; due None: every valid token."""
        used_N = self.used(a, b)
        tried.compared.append(
            judge.compared(words, a.logprob_N, b.logprob_N, used_N, self.valid if due is None else due)
        )

    def against_plain(self, tried: judge.Tried, role: Role, variant: Variant, due: int | None = None) -> None:
        """Run one way and compare it with the plain one, unless its own facts say that it did not take effect."""
        other, _ = self.sides.score(role, self.source.folder, variant.how)
        why = variant.proof(self.plain[role], other)
        if why:
            tried.skipped.append(f"{variant.words}: {why}")
        else:
            self.compare(tried, variant.words, self.plain[role], other, due)

    def among(self, tried: judge.Tried, company: Company, least: int = 2) -> None:
        """Score the rollout's sequences in a company, and compare them with the plain way.

        Args:
            least: smallest batch that counts as this company.
        """
        folder = self.sides.job.new("company")
        rollout_store.write(folder, company.data, side="made for the gate", notes=(company.words,))
        scores, _ = self.sides.score("rollout", folder)
        largest = scores.facts.get("largest_batch")
        if not isinstance(largest, int) or largest < least:
            tried.skipped.append(f"{company.words}: this side had {largest} sequences in flight at most")
            return
        self.compare(
            tried,
            company.words,
            self.plain["rollout"],
            company.back(scores, self.data),
            company.due(self.data),
        )

    def disturb(
        self,
        tried: judge.Tried,
        role: Role,
        how: How,
        words: str,
        at: At = last_of_prompt,
        against: Scores | None = None,
    ) -> None:
        """The control of a way: run it again with its computation disturbed. Elements are moved where they can be;
        where no hook runs (a compiled engine, CUDA graphs) it runs on weights of which one matrix was moved.
        """
        if isinstance(self.tap(role), str):
            self.nudged_control(tried, role, how, words, against)
        else:
            self.flip_control(tried, role, how, words, at, against)

    def nudged_control(
        self, tried: judge.Tried, role: Role, how: How, words: str, against: Scores | None = None
    ) -> None:
        """Run the way on weights of which one matrix was moved, then bring the weights back."""
        try:
            nudged = self.nudged()
        except UserError as error:
            tried.no_control = f"{self.tap(role)}; and {error.thing}: {error.reason}"
            return
        push = Push(weights=str(nudged.file), version=self.data.weight_version)
        self.sides.session(role).ask(push)
        other, _ = self.sides.score(role, self.source.folder, how)
        self.sides.session(role).ask(push.model_copy(update={"weights": str(nudged.original)}))
        plain = against or self.plain[role]
        what = f"{words}, {nudged.words}"
        tried.control = judge.control(what, plain.logprob_N, other.logprob_N, self.used(plain, other))

    def nudged(self) -> Nudged:
        """Weights with one matrix moved, made once.

        Raises:
            UserError: the model is no folder of weights.
        """
        if self._nudged is None:
            self._nudged = nudge(self.sides.experiment.rollout.model, self.sides.job)
        return self._nudged

    def flip_control(
        self,
        tried: judge.Tried,
        role: Role,
        how: How,
        words: str,
        at: At = last_of_prompt,
        against: Scores | None = None,
    ) -> None:
        """Run the way again with a few elements moved by one ulp in it alone: the check must see it."""
        tap = self.tap(role)
        if isinstance(tap, str):
            tried.no_control = tap
            return
        flips = self.flips(tap, at)
        if not flips:
            tried.no_control = "no sequence has a row that this control could move"
            return
        other, _ = self.sides.score(role, self.source.folder, how, edits=flips)
        plain = against or self.plain[role]
        what = f"{words}, {described(flips)}"
        tried.control = judge.control(what, plain.logprob_N, other.logprob_N, self.used(plain, other))

    def flips(self, tap: Tap, at: At, data: RolloutData | None = None) -> tuple[Flip, ...]:
        """A few elements of one row per sequence, in sequences spread over the rollout (or over other data)."""
        places = [
            (i, position)
            for i, sequence in enumerate((data or self.data).sequences)
            if sequence.sampled and (position := at(sequence)) is not None
        ]
        chosen = places[:: max(1, len(places) // FLIPPED)][:FLIPPED]
        wanted = COLUMNS * FLIPPED // max(1, len(chosen))
        columns = range(0, tap.columns, max(1, -(-tap.columns // wanted)))
        return tuple(
            Flip(site=tap.site, sequence=i, position=position, column=column)
            for i, position in chosen
            for column in columns
        )

    def tap(self, role: Role) -> Tap | str:
        """The first module output with token rows; or why no element of this side can be moved."""
        if role not in self._taps:
            self._taps[role] = self._find_tap(role)
        return self._taps[role]

    def _find_tap(self, role: Role) -> Tap | str:
        facts = self.described(role)
        compiled, graphs = str(facts.get("compiled", "")), str(facts.get("graphs", ""))
        if compiled not in ("", "NONE", "False"):
            return f"module hooks do not run in a compiled engine ({compiled}), so nothing can be moved inside it"
        if graphs not in ("", "NONE"):
            return f"module hooks do not run in a CUDA graph ({graphs}), so nothing can be moved inside it"
        used = next(i for i, sequence in enumerate(self.data.sequences) if sequence.sampled)
        plan = CapturePlan(level="module", store="digest", sequences=(used,))
        captured, folder = self.sides.score(role, self.source.folder, capture=plan)
        plain = self.plain[role]
        if bool((gap.differs(plain.logprob_N, captured.logprob_N) & self.used(plain, captured)).any()):
            return "the recorder itself moves bits of this side, so an edit would prove nothing"
        tap = first_output(artifact.read(folder / "capture", CaptureManifest).taps)
        return tap if tap is not None else "no module output with token rows could be found"


def described(flips: tuple[Flip, ...]) -> str:
    """What was moved, in words."""
    rows = len({(flip.sequence, flip.position) for flip in flips})
    return f"{len(flips) // rows} elements of {flips[0].site} moved by one ulp in each of {rows} sequences"


def disturbed(bench: Bench, words: str, a: Scores, b: Scores) -> ControlRow:
    """A control from two runs of which one was disturbed."""
    return judge.control(words, a.logprob_N, b.logprob_N, bench.used(a, b))
