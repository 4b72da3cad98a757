"""What every tool works with: the pool, the roots, and the one way in which a call becomes a job."""

from __future__ import annotations

import json
import os
import select
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import resume
from samebits.server.mcp import answers
from samebits.server.mcp.clean import clean
from samebits.server.mcp.overrides import SWITCHES
from samebits.server.mcp.overrides import check as check_overrides
from samebits.tools.schema import reader
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment
from samebits.tools.schema.experiment import Pool as Settings
from samebits.tools.schema.wrong import in_words

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

    from samebits.server.jobs.index import Row
    from samebits.server.jobs.pool import Pool
    from samebits.server.mcp.answers import Answer
    from samebits.server.mcp.roots import Roots
    from samebits.tools.schema.requests import Request

PATIENCE_S = 40.0
"""No call takes longer: below the shortest limit of the clients (60 s), with room."""
PROGRESS_S = 1.0
PATHS = ("rollout", "resume", "divergence", "candidate", "gate", "repro", "config", "proposal")
"""Fields of requests that may name a place."""


@dataclass(frozen=True, slots=True)
class App:
    """One serving process."""

    pool: Pool
    roots: Roots
    python: str
    patience_s: float = PATIENCE_S
    read_only: bool = False
    client: int | None = None
    """Standard input where it is the one client's; None: clients come and go."""

    def is_left(self) -> bool:
        """Whether the one client has closed its end. Then this server ends too, and calls are cut off by that."""
        if self.client is None:
            return False
        end = select.poll()
        end.register(self.client, select.POLLHUP | select.POLLRDHUP)
        return bool(end.poll(0))

    def experiment(self, config: str, overrides: tuple[str, ...]) -> Experiment:
        """The experiment a call names, its paths checked.

        Raises:
            UserError: no such file, wrong keys, a path outside the roots, an override that a call may not make.
        """
        path = self.roots.path(config, "config", whole=False)
        if path.is_dir():
            path = self.roots.path(str(path / reader.NAME), "config")
        experiment = reader.read(path, overrides)
        if overrides:
            check_overrides(reader.read(path), experiment, self.roots, self.python)
        self.roots.check(experiment, self.python)
        return experiment

    def looked_at(self, config: str, overrides: tuple[str, ...]) -> Experiment:
        """The experiment as inspect_setup takes it. Read-only: no file of the project decides what is run, so its
        interpreter, its cluster and the variables that could load code are left out.

        Raises:
            UserError: see `experiment`.
        """
        found = self.experiment(config, overrides)
        if not self.read_only:
            return found
        sides = {
            role: side.model_copy(update={"env": {k: v for k, v in side.env.items() if k in SWITCHES}})
            for role, side in (("rollout", found.rollout), ("trainer", found.trainer))
        }
        pool = found.pool.model_copy(update={"worker_python": "", "backend": "embedded"})
        return found.model_copy(update={**sides, "pool": pool})

    def own(self) -> Experiment:
        """The project's experiment, its paths checked; without a file the defaults."""
        return self.experiment(".", ()) if (self.roots.project / reader.NAME).is_file() else Experiment()

    def settings(self, request: Request) -> Settings:
        """[pool] for a request: of its experiment, else of the project's experiment file, its paths checked."""
        own = getattr(request, "experiment", None)
        if own is None and (self.roots.project / reader.NAME).is_file():
            own = self.experiment(".", ())
        return Settings() if own is None else own.pool

    def checked(self, request: Request) -> Settings:
        """[pool] for a request that was read from a job's folder, every path in it checked.

        Raises:
            UserError: one leaves the roots.
        """
        experiment = getattr(request, "experiment", None)
        if experiment is not None:
            self.roots.check(experiment, self.python)
        for name in PATHS:
            text = getattr(request, name, None)
            if isinstance(text, str) and os.sep in text:
                self.roots.path(text, name)
        return self.settings(request)

    def again(self, job: str, kind: str) -> Request:
        """The request that resumes a job of this kind.

        Raises:
            UserError: of another kind, not ended, or a path in it leaves the roots.
        """
        row, folder = self.known(job), self.pool.index.folder(job)
        request = resume.again(row, folder)
        if request.kind != kind:
            tool = answers.for_tools(f"samebits {request.kind}")
            raise UserError(f"job {job!r}", f"is one of {tool}", "give its id to that tool")
        self.checked(request)
        if self.read_only:
            raise UserError(f"job {job!r}", "this server only looks", "name an experiment")
        return request

    def artifact(self, text: str, kind: str) -> str:
        """The path of an artifact named by id (JOB/NAME, as `ids` of an answer give it) or by path.

        Args:
            kind: of its manifest; a file has none.

        Raises:
            UserError: not there, of another kind, or outside the roots.
        """
        what = kind
        job, _, rest = text.partition("/")
        if rest and self.row(job) is not None:
            path = self.pool.index.folder(job) / rest
            if ".." in Path(rest).parts or self.pool.index.folder(job).resolve() not in [
                path.resolve(),
                *path.resolve().parents,
            ]:
                raise UserError(f"{what} {text!r}", "leaves its job's folder", "give an id out of `ids` of an answer")
        else:
            path = self.roots.path(text, what)
        if not path.exists():
            raise UserError(
                f"{what} {clean(text, 200, lines=False)!r}",
                "no such artifact",
                "give an id out of `ids` of an answer; wait_job() lists the jobs",
            )
        if path.is_dir() and (found := manifest_kind(path)) != kind:
            named = f"a {clean(found, 40, lines=False)}" if found else "no artifact"
            raise UserError(f"{what} {text!r}", f"is {named}", f"give the id of a {kind}; wait_job() lists the jobs")
        return str(path)

    def stored(self, rollout: str) -> str | None:
        """The path of a stored rollout; None where a call names none.

        Raises:
            UserError: see `artifact`.
        """
        return self.artifact(rollout, "rollout") if rollout else None

    def row(self, job: str) -> Row | None:
        """A job's entry; None for what is no job id, or a job whose folder is outside the roots."""
        row = self.pool.index.get(job) if job and "/" not in job and job[0] != "." else None
        return row if row is not None and self.roots.holds(self.pool.index.folder(job)) else None

    def known(self, job: str) -> Row:
        """A job's entry.

        Raises:
            ToolError: there is none.
        """
        row = self.row(job)
        if row is None and job and "/" not in job and self.pool.index.get(job) is not None:
            raise ToolError(f"job {job!r}: its folder is outside the roots. Next: serve with --root for it, too.")
        if row is None:
            raise ToolError(f"no job {clean(job, 100, lines=False)!r}. Next: wait_job() lists the jobs there are.")
        return row

    def answer(self, job: str, log: str = "") -> Answer:
        """What a job says now."""
        row = self.known(job)
        return answers.of_job(row, self.pool.index.folder(job), waiting_for=self.pool.waiting_for(job), log=log)

    async def carry_out(
        self, ctx: Context[App, Any], request: Request, *, resumes: str = "", patience_s: float | None = None
    ) -> Answer:
        """Queue a request and answer with its result, or, after PATIENCE_S, with its job id.

        A cancelled call cancels its job: whoever asked does not want it any more. One that is cut off, as the client is
        gone and this server ends, leaves it to the pool, which interrupts it.

        Args:
            resumes: the job whose request it is.
            patience_s: less than this server's, where the call has waited for something else.
        """
        try:
            job = self.pool.submit(request, self.settings(request))
        except UserError as error:
            raise ToolError(answers.for_tools(clean(str(error), 2000))) from error
        if resumes:
            resume.note(self.pool.index.folder(job), resumes)
        try:
            await self.follow(ctx, job, self.patience_s if patience_s is None else patience_s)
        except anyio.get_cancelled_exc_class():
            if not self.is_left():
                self.pool.cancel(job)
            raise
        return self.answer(job)

    async def follow(self, ctx: Context[App, Any], job: str, seconds: float) -> None:
        """Wait for a job, reporting its progress to a client that asked for it."""
        until, seen, steps = anyio.current_time() + seconds, None, 0
        while (left := until - anyio.current_time()) > 0:
            await self.pool.wait(job, min(PROGRESS_S, left))
            event = job_folder.last_event(self.pool.index.folder(job))
            if event is not None and event != seen:
                seen, steps = event, steps + 1
                await ctx.report_progress(steps, message=clean(f"{event.phase}: {event.message}", 200, lines=False))
            row = self.pool.index.get(job)
            if row is None or row.is_ended:
                return


def manifest_kind(folder: Path) -> str:
    """The kind that an artifact folder says it is; "" when it says none."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return ""
    return str(manifest.get("kind", "")) if isinstance(manifest, dict) else ""


def refused(error: UserError | ValidationError) -> ToolError:
    """A user's mistake as the text a model reads."""
    if isinstance(error, UserError):
        return ToolError(answers.for_tools(clean(str(error), 2000)))
    return ToolError(clean(f"{in_words(error)}. Next: correct that argument.", 1000))
