"""Records the taps of one run of a module, makes edits on the way, and writes the Capture artifact.

    with Recorder(model, rowmap, plan, edits, role="trainer") as recorder:
        for batch in batches:
            ...                                  # rowmap.current() must answer for this batch from here on
            hidden = model(...)                  # a pass begins with each call of the root module
            (logprob,) = recorder.external("logprob", [logits], [logprob])
    recorder.write(folder / "capture", lengths=[...])

Where a pass is more than a call of the root, call `begin_pass()` and `end_pass()` around it; then calls of the root
begin nothing. What runs after the root and before the next pass (lm_head outside of forward) belongs to the pass.

**Ports.** Module inputs: `in0`, `in1`, ... number the tensors among the positional arguments (tuples and lists
flattened), keyword ones are `in.NAME` (`in.NAME.0` inside a tuple). Outputs: `out0`, `out1`, ... number the tensors;
None and other objects are passed over. Operators: the same, with `mut.NAME` for an argument that the operator writes
and does not return, and `scalars` for the non-tensor arguments as text. Memory that was allocated and never written is
no input. Triton launches (operator `triton.KERNEL`): `in.NAME` before, `mut.NAME` after for what the kernel changed.

**Order.** `Tap.order` is time within the pass: inputs are taken when the call begins, outputs when it ends, so the
outputs of a container come after those of its parts.

**Parts.** `plan.parts` names columns of a tap that get a tap of their own, port `out0[a:b]`: a merged qkv can then be
compared by digest.

**Edits** act after the tap of the same site is taken, so the tap shows what the side computed. Outputs are replaced by
an edited copy (what a module or operator hands on); what an operator writes in place (`mut.NAME`, in-place operators)
is written in place.

**What is not seen.** Compiled modules run no hooks: what was chosen and never called is listed in `untapped`. Operators
called inside the Python implementation of another operator are not seen one by one (its Triton launches are).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

import torch

from samebits.tools.capture import writer
from samebits.tools.capture.operators import OperatorMode
from samebits.tools.capture.passes import Chosen, Pass, keys_of
from samebits.tools.capture.places import Place
from samebits.tools.capture.replay import Replays
from samebits.tools.capture.sink import Sink
from samebits.tools.capture.tensors import leaves, mapped
from samebits.tools.schema.sites import CapturePlan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from torch.utils.hooks import RemovableHandle

    from samebits.tools.capture.rows import RowMap
    from samebits.tools.schema.artifacts.base import Environment
    from samebits.tools.schema.artifacts.capture import CaptureManifest
    from samebits.tools.schema.sites import Edit


_NUMBERED = {side: tuple(f"{side}{i}" for i in range(1024)) for side in ("in", "out")}
"""Names of ports, made once: a name that is the same object is found faster than one that is equal."""


@dataclass(slots=True)
class Frame:
    """A module call that is running."""

    path: str
    call: int
    module: torch.nn.Module
    recorded: bool
    """Operators inside are recorded."""
    active: bool
    """Operators inside are seen: recorded, or perhaps edited."""
    again: Any = None
    """Copies of the arguments, for the replay."""


@dataclass(slots=True)
class Counts:
    """What a run did, for the manifest."""

    passes: int = 0
    seen: list[torch.Tensor] = field(default_factory=list)
    """Keys of all token rows, pass after pass."""


class Quiet:
    """The recorder computes: hooks and modes look away, no gradients. Entered for every call, hence no generator."""

    __slots__ = ("before", "gradients", "recorder")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def __enter__(self) -> None:
        self.before, self.gradients = self.recorder.busy, torch.is_grad_enabled()
        self.recorder.busy = True
        torch._C._set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self.gradients)
        self.recorder.busy = self.before


class Recorder:
    """Context manager around the passes of one run. See the module's docstring.

    Args:
        root: any module; hooks are put on it and everything inside it.
        rowmap: asked once at the beginning of every pass.
        plan: what to record; None: only edits.
        edits: see samebits.tools.schema.sites.
        role: of the side, for the manifest.
        expected_rows: token rows the run will compute in all, when known: then the budget refuses after the first pass.

    Raises (from the hooks, `external` or the end of the context):
        UserError: over the budget; an edit that does not fit or was never applied.
    """

    def __init__(
        self,
        root: torch.nn.Module,
        rowmap: RowMap,
        plan: CapturePlan | None,
        edits: tuple[Edit, ...] = (),
        role: Literal["rollout", "trainer"] = "trainer",
        *,
        expected_rows: int | None = None,
    ) -> None:
        self.root, self.rowmap, self.plan, self.role = root, rowmap, plan, role
        self.sink = Sink(root, plan, edits, expected_rows)
        self.counts = Counts()
        self.replays = Replays()
        self.busy = False
        """True while the recorder itself computes: hooks and modes then look away."""
        self._explicit = False
        self._frames: list[Frame] = []
        self._handles: list[RemovableHandle] = []
        self._operators = (plan is not None and plan.level == "operator") or self.sink.edits.operators
        self._mode = OperatorMode(self) if self._operators else None
        self._depth = 0
        self._modules = None if plan is None or plan.modules is None else frozenset(plan.modules)
        self._sequences = (
            None if plan is None or plan.sequences is None else torch.tensor(plan.sequences, dtype=torch.int64)
        )
        self._called: set[str] = set()

    # --- passes

    def begin_pass(self) -> None:
        """A forward pass begins; `rowmap.current()` answers for it now."""
        self._begin()
        self._explicit = True

    def end_pass(self) -> None:
        """The pass that `begin_pass` began is over."""
        self._end()
        self._explicit = False

    def _begin(self) -> None:
        self._end()
        with self.quiet():
            self.sink.running = Pass.begin(self.counts.passes, self.rowmap.current(), self._sequences)
        self.counts.passes += 1
        self.counts.seen.append(self.sink.running.all.kept_keys)

    def _end(self) -> None:
        if self.sink.running is None:
            return
        rows = len(self.sink.running.all.kept_keys)
        self.sink.running = None
        self._leave_all()
        if self.counts.passes == 1:
            with self.quiet():
                self.sink.store.flush()
            self.sink.store.after_first_pass(rows)

    def quiet(self) -> Quiet:
        """What happens inside is the recorder's own."""
        return Quiet(self)

    # --- context

    def __enter__(self) -> Self:
        if self._mode is not None:
            self._mode.launches.install()
        for path, module in self.root.named_modules():
            if path == "" or self._operators or self._ports(path) or path in self.sink.edits.modules:
                self._handles.append(
                    module.register_forward_pre_hook(self._before(path), with_kwargs=True, prepend=True)
                )
                self._handles.append(
                    module.register_forward_hook(self._after(path), with_kwargs=True, always_call=True)
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._mode is not None:
            self._leave_all()
            self._mode.launches.remove()
        if kind is not None:
            self.sink.store.drop()
            return
        self.end()
        self.sink.edits.finish()

    def end(self) -> None:
        """The running pass is over, and every digest is made."""
        self._end()
        with self.quiet():
            self.sink.store.flush()

    def write(
        self,
        folder: Path,
        *,
        lengths: Sequence[int] | None = None,
        same_logprobs: bool | None = None,
        environment: Environment | None = None,
        made_from: dict[str, str] | None = None,
    ) -> CaptureManifest:
        """Write the Capture artifact. Call it after the context ended.

        Args:
            lengths: fed tokens of each sequence of the rollout, to tell rows that were never computed; None: only holes
                before the last position seen of each sequence are told.
        """
        if self.plan is None:
            raise ValueError("nothing was recorded: no plan")
        return writer.write(
            folder,
            self,
            lengths=lengths,
            same_logprobs=same_logprobs,
            environment=environment,
            made_from=made_from or {},
        )

    def untapped(self) -> dict[str, str]:
        """What ran, or was chosen, and was not tapped, with the reason."""
        out = dict(self.sink.untapped)
        assert self.plan is not None
        paths = {path: module for path, module in self.root.named_modules() if path}
        # A container has no forward of its own, so nobody misses it where all modules were asked for.
        every = [path for path, one in paths.items() if type(one).forward is not torch.nn.Module.forward]
        for path in every if self.plan.modules is None else self.plan.modules:
            if path not in self._called and path not in out:
                known = "never called as a module (a container, inlined, or compiled)"
                out[path] = known if path in paths else "no such module"
        if self._mode is not None:
            reasons: dict[str, list[str]] = {}
            for name, why in self._mode.skipped:
                reasons.setdefault(why, []).append(name)
            out |= {", ".join(names): why for why, names in reasons.items()}
        return out

    # --- what is wanted

    def _tapped(self, path: str) -> bool:
        """Tapped as a module by the plan."""
        return self.plan is not None and (self._modules is None or path in self._modules)

    def _ports(self, path: str) -> bool:
        """Its inputs and outputs are tapped."""
        return self._tapped(path) or (self.plan is not None and self.plan.ports == "all")

    def _opened(self, path: str, call: int, module: torch.nn.Module) -> Frame:
        """The frame of a module call. All inside a chosen module is recorded, also a shared module named elsewhere."""
        recorded = self.plan is not None and self.plan.level == "operator"
        recorded &= self._tapped(path) or (bool(self._frames) and self._frames[-1].recorded)
        return Frame(
            path, call, module, recorded, recorded or (self.sink.edits.operators and path in self.sink.edits.modules)
        )

    # --- module hooks

    def _before(self, path: str) -> Callable[..., Any]:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
            if self.busy:
                return None
            if (path == "" and not self._explicit) or self.sink.running is None:
                self._begin()
            assert self.sink.running is not None
            self._called.add(path)
            frame = self._opened(path, self.sink.running.next_call(path), module)
            with self.quiet():
                changed = self._inputs(frame, args, kwargs)
            self._frames.append(frame)
            if frame.active and self._mode is not None:
                self._depth += 1
                if self._depth == 1:
                    self._mode.__enter__()  # type: ignore[no-untyped-call]
            return changed

        return hook

    def _inputs(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Take and edit the inputs; the new (args, kwargs) when something changed."""
        wanted = frame.recorded or self._ports(frame.path)
        if not wanted and frame.path not in self.sink.edits.modules:
            return None
        new_args, new_kwargs = self._take(frame, "in", args, wanted), kwargs
        if kwargs:
            new_kwargs = self._take(frame, "in", kwargs, wanted, [f"in.{name}" for name, _ in leaves(kwargs)])
        if (frame.recorded or self._tapped(frame.path)) and self.plan is not None and self.plan.replay:
            frame.again = self.replays.prepare(self, frame, new_args, new_kwargs)
        return None if new_args is args and new_kwargs is kwargs else (new_args, new_kwargs)

    def _after(self, path: str) -> Callable[..., Any]:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if self.busy or not self._frames:
                return None
            if self._frames[-1].path != path and not any(frame.path == path for frame in self._frames):
                return None
            frame = self._frames.pop()
            while frame.path != path:
                self._leave(frame)
                frame = self._frames.pop()
            self._leave(frame)
            if output is None or self.sink.running is None:
                return None
            with self.quiet():
                return self._outputs(frame, args, kwargs, output)

        return hook

    def _outputs(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        wanted = frame.recorded or self._ports(frame.path)
        if not wanted and frame.path not in self.sink.edits.modules:
            return None
        if frame.again is not None:
            self.replays.module(self, frame, args, kwargs, output)
        changed = self._take(frame, "out", output, wanted)
        return None if changed is output else changed

    def _take(self, frame: Frame, side: str, values: Any, record: bool, names: list[str] | None = None) -> Any:
        """Take every tensor in `values`; the ports are `names`, or numbered."""
        kind = type(frame.module).__name__
        ports = iter(_NUMBERED[side] if names is None else names)

        def take(tensor: torch.Tensor) -> torch.Tensor:
            return self.sink.take(Place(frame.path, next(ports), frame.call), tensor, kind, record=record)

        return mapped(values, take)

    def _leave(self, frame: Frame) -> None:
        if frame.active and self._mode is not None:
            self._depth -= 1
            if self._depth == 0:
                self._mode.fresh.clear()
                self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _leave_all(self) -> None:
        while self._frames:
            self._leave(self._frames.pop())

    @property
    def frame(self) -> Frame | None:
        """The deepest module call that is running."""
        return self._frames[-1] if self._frames else None

    @property
    def records(self) -> bool:
        """Operators that run now are recorded."""
        return bool(self._frames) and self._frames[-1].recorded

    def digests(self, place: Place, digests_T2: torch.Tensor, producer: str, order: int, like: torch.Tensor) -> None:
        """Record a port of a module whose rows were digested elsewhere: see Sink.take_digests."""
        if self.sink.running is not None and self._ports(place.module):
            self._called.add(place.module)
            self.sink.take_digests(place, digests_T2, producer, order, like)

    def external(
        self,
        module: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        sequence_R: torch.Tensor | None = None,
        position_R: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Record a step that is no module (logits to logprob) as if it were one named `module`.

        Args:
            inputs, outputs: ports in0, in1, ... and out0, out1, ...; each has R rows in its first dimension.
            sequence_R, position_R: their rows; None: the head rows of the pass.

        Returns:
            The outputs, edited where edits say so.
        """
        running = self.sink.running
        if running is None:
            return tuple(outputs)
        call = running.next_call(module)
        chosen = running.head
        if sequence_R is not None and position_R is not None:
            name = f"{running.number}x{module}{call}"
            chosen = Chosen.of(name, keys_of(sequence_R, position_R), self._sequences)
        self._called.add(module)
        wanted = self._ports(module)
        with self.quiet():
            for port, tensor in enumerate(inputs):
                place = Place(module, f"in{port}", call)
                self.sink.take(place, tensor, "step", record=wanted, chosen=chosen)
            edited = []
            for port, tensor in enumerate(outputs):
                place = Place(module, f"out{port}", call)
                edited.append(self.sink.take(place, tensor, "step", record=wanted, chosen=chosen))
        return tuple(edited)
