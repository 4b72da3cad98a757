"""The tools that do work. Each makes the request its command-line verb makes and runs it as a job."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations
from pydantic import Field, ValidationError

from samebits.server.mcp.answers import Answer
from samebits.server.mcp.context import App, refused
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import (
    BuildRequest,
    CaptureRequest,
    DiffRequest,
    GateRequest,
    InspectRequest,
    MeasureRequest,
    MinimizeRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mcp.server import MCPServer

    from samebits.tools.schema.requests import Request

Config = Annotated[str, Field(description="samebits.toml, its folder, or a job to resume")]
Overrides = Annotated[tuple[str, ...], Field(description='"section.key=value", on top of the file', max_length=50)]
Rollout = Annotated[str, Field(description="stored rollout: id, or path to JSONL/parquet rows")]
Ctx = Context[App, Any]
MOST = 64
"""Operators that diff_ops proves one by one unless told."""
LOOKS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WORKS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)


def app_of(ctx: Ctx) -> App:
    """The serving process a call reached."""
    app: App = ctx.request_context.lifespan_context
    return app


@contextmanager
def mistakes() -> Iterator[None]:
    """Users' mistakes become readable tool errors."""
    try:
        yield
    except (UserError, ValidationError) as error:
        raise refused(error) from error


async def work(
    ctx: Ctx, kind: str, named: str, others: Iterable[object], make: Callable[[App], Request], side: str = ""
) -> Answer:
    """Queue the request that a call makes, or, where `named` is a job's id, that job's own once more.

    Args:
        others: arguments besides `named`: whether each says something.
        side: of a capture; a job that is resumed must have the same.
    """
    app = app_of(ctx)
    with mistakes():
        job = named if app.row(named) is not None else ""
        if job and any(others):
            raise UserError(f"job {job!r}", "is resumed as it was asked", "leave the other arguments out")
        request = app.again(job, kind) if job else make(app)
        if side and (asked := getattr(request, "side", side)) != side:
            raise UserError(f"job {job!r}", f"is a capture of the {asked} side", f"say side={asked!r}")
    return await app.carry_out(ctx, request, resumes=job)


async def inspect_setup(ctx: Ctx, config: Config = ".", overrides: Overrides = ()) -> Answer:
    """Say what is installed and whether this experiment can run here. Call first."""
    return await work(
        ctx,
        "inspect",
        config,
        [overrides],
        lambda app: InspectRequest(experiment=app.looked_at(config, overrides), foreign=not app.read_only),
    )


async def measure_gap(
    ctx: Ctx,
    config: Config = ".",
    overrides: Overrides = (),
    rollout: Rollout = "",
    axes: Annotated[tuple[str, ...] | None, Field(description="self-consistency axes; [] none, null all")] = None,
) -> Answer:
    """Logprob gap between rollout and trainer on every sampled token: max, mean, std, k3; rules out data and meaning
    (weights, temperature, shift, ...); compares each side with itself. verdict equal means every bit."""
    return await work(
        ctx,
        "measure",
        config,
        [overrides, rollout, axes is not None],
        lambda app: MeasureRequest(
            experiment=app.experiment(config, overrides), rollout=app.stored(rollout), axes=axes
        ),
    )


async def capture_activations(
    ctx: Ctx,
    side: Literal["rollout", "trainer"],
    config: Config = ".",
    overrides: Overrides = (),
    rollout: Rollout = "",
) -> Answer:
    """Record activations of one side by token row ([capture] says what). diff_ops makes its own captures."""
    return await work(
        ctx,
        "capture",
        config,
        [overrides, rollout],
        lambda app: CaptureRequest(
            experiment=app.experiment(config, overrides), side=side, rollout=app.stored(rollout)
        ),
        side,
    )


async def diff_ops(
    ctx: Ctx,
    config: Config = ".",
    overrides: Overrides = (),
    rollout: Rollout = "",
    against: Annotated[
        Literal["trainer", "repeat", "batch", "decode_prefill", "chunked_prefill", "prefix_hit"],
        Field(description="trainer, or the rollout side itself computed another way"),
    ] = "trainer",
    max_operators: Annotated[int, Field(ge=1, le=1000)] = MOST,
) -> Answer:
    """Work list: every operator that differs by itself, in order, each proven, with cause and effect on the logprobs.
    Run measure_gap first; put a side that varies against itself right before comparing sides."""
    return await work(
        ctx,
        "diff",
        config,
        [overrides, rollout, against != "trainer", max_operators != MOST],
        lambda app: DiffRequest(
            experiment=app.experiment(config, overrides),
            rollout=app.stored(rollout),
            against=against,
            max_operators=max_operators,
        ),
    )


async def minimize_repro(
    ctx: Ctx,
    divergence: Annotated[str, Field(description="id of diff_ops' divergence")],
    operator: Annotated[int | None, Field(ge=0, description="index in its work list")] = None,
) -> Answer:
    """Cut one operator of the work list into a folder whose repro.py runs by itself (exits 0 equal, 1 differs, 2 cannot
    run)."""
    return await work(
        ctx,
        "minimize",
        divergence,
        [operator is not None],
        lambda app: MinimizeRequest(divergence=app.artifact(divergence, "divergence"), operator=operator),
    )


async def build_kernel(
    ctx: Ctx,
    candidate: Annotated[str, Field(description="folder with candidate.toml, or a library operator's name")],
    device: Literal["auto", "cpu", "cuda"] = "auto",
    timing: bool = True,
) -> Answer:
    """Build a candidate kernel and put it through the gate for candidates, in a sandbox; the summary says which, or
    UNSANDBOXED."""

    def make(app: App) -> BuildRequest:
        folder = candidate if candidate.isidentifier() else str(app.roots.path(candidate, "candidate"))
        own = app.own()
        limit = own.pool.memory_limit_mib
        return BuildRequest(
            candidate=folder, device=device, timing=timing, sandbox=own.gate.sandbox, memory_limit_mib=limit
        )

    return await work(ctx, "build", candidate, [device != "auto", not timing], make)


async def run_regression(
    ctx: Ctx,
    config: Config = ".",
    overrides: Overrides = (),
    rollout: Rollout = "",
    axes: Annotated[tuple[str, ...], Field(description="only these; [] as [gate] says, else all")] = (),
    require: Annotated[tuple[str, ...], Field(description="must have run")] = (),
) -> Answer:
    """The gate: every axis exact, each with a negative control that must fail. verdict equal is the only pass."""
    return await work(
        ctx,
        "gate",
        config,
        [overrides, rollout, axes, require],
        lambda app: GateRequest(
            experiment=app.experiment(config, overrides), rollout=app.stored(rollout), axes=axes, require=require
        ),
    )


def register(server: MCPServer[App], *, read_only: bool) -> None:
    """Add the tools. Read-only: what starts no engine and builds nothing."""
    server.add_tool(inspect_setup, title="Inspect the set-up", annotations=LOOKS, meta={"anthropic/alwaysLoad": True})
    if read_only:
        return
    server.add_tool(
        measure_gap, title="Measure the logprob gap", annotations=WORKS, meta={"anthropic/alwaysLoad": True}
    )
    server.add_tool(capture_activations, title="Capture activations", annotations=WORKS)
    server.add_tool(diff_ops, title="Find the operators that differ", annotations=WORKS)
    server.add_tool(minimize_repro, title="Cut a minimal repro", annotations=WORKS)
    server.add_tool(build_kernel, title="Build and check a kernel", annotations=WORKS)
    server.add_tool(run_regression, title="Run the regression gate", annotations=WORKS)
