"""Carries out a job folder on a Ray cluster: `python -m samebits.server.pool.ray_runner FOLDER`.

It runs under the job's warden, in the place of the worker, and is the only process here that imports Ray. One actor per
job, never restarted; nothing is tried twice. When this process is gone, however it ended, Ray ends the actor, and the
warden on the node ends the worker and its sides.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits.server.jobs.launch import GRACE_S
from samebits.server.jobs.order import RAY_FILE, Order
from samebits.server.pool import transfer
from samebits.server.pool.content import Damaged
from samebits.server.pool.ray_node import Node
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.results import Cancelled, Event, Failed

if TYPE_CHECKING:
    from types import FrameType

    from samebits.tools.schema.results import Outcome

POLL_S = 0.2
CALL_S = 60.0
"""A node that does not answer for so long is lost."""
WAITING_S = 15.0
OVERTIME_S = 120.0
"""So long beyond its time limit a job's own warden may take to end it."""
DISABLED = "RAY_AUTH_MODE=disabled if nobody else can reach the cluster"


class Stopped(BaseException):
    """TERM or INT came."""


class Lost(Exception):
    """The node, or the job's process there, is gone."""


class Actor:
    """A Node on the cluster."""

    def __init__(self, ray: Any, order: Order, gpus: int) -> None:
        self.ray = ray
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        self.actor = ray.remote(Node).options(**options).remote(Path(order.folder).name, gpus)
        self.where = "the node"
        self.greeting = self.actor.hello.remote()

    def ready(self, seconds: float) -> dict[str, Any] | None:
        """What the node says of itself, or None while the cluster has no room."""
        if not self.ray.wait([self.greeting], timeout=seconds)[0]:
            return None
        hello: dict[str, Any] = self._get(self.greeting)
        self.where = f"node {hello['host']}"
        return hello

    def call(self, method: str, *arguments: Any) -> Any:
        """A method of the Node.

        Raises:
            Lost: it does not answer any more.
        """
        return self._get(getattr(self.actor, method).remote(*arguments))

    def _get(self, reference: Any) -> Any:
        errors = self.ray.exceptions
        try:
            return self.ray.get(reference, timeout=CALL_S)
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.GetTimeoutError as error:
            raise Lost(f"no answer for {CALL_S:.0f} s") from error
        except errors.RayError as error:
            raise Lost(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__) from error

    def end(self) -> None:
        """The actor's process ends, and what it started with it."""
        self.ray.kill(self.actor)


def connect(address: str) -> Any:
    """Ray, joined to the cluster.

    Raises:
        UserError: not installed, no cluster there, no token.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise UserError("pool.backend = 'ray'", "Ray is not installed here", "pip install 'samebits[ray]'") from error
    wanted = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        ray.init(address=wanted, namespace="samebits", log_to_driver=False, logging_level="ERROR")
    except ray.exceptions.AuthenticationError as error:
        following = f"put the cluster's token into ~/.ray/auth_token (`ray get-auth-token`), or set {DISABLED}"
        raise UserError(f"the Ray cluster at {wanted}", "asks for a token that is not here", following) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        following = "see that it runs, and that pool.ray_address and the token here are its own (docs/pool.md)"
        raise UserError(f"the Ray cluster at {wanted}", f"cannot be joined: {reason}", following) from error
    return ray


class Run:
    """One job on the cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.order = Order.model_validate_json((folder / RAY_FILE).read_bytes())
        self.request: dict[str, Any] = json.loads((folder / "request.json").read_bytes())
        self.actor: Actor | None = None
        self.progress: transfer.Progress | None = None

    def emit(self, message: str) -> None:
        """Append to events.jsonl."""
        event = Event(time=time.time(), phase="ray", message=message)
        with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(event.model_dump_json() + "\n")

    def carry_out(self) -> Outcome:
        """From the request to its outcome.

        Raises:
            Lost, Damaged, UserError, OSError: as their words say.
        """
        self.emit("joining the cluster")
        ray = connect(self.order.ray_address)
        gpus = self.gpus(ray)
        self.actor = Actor(ray, self.order, gpus)
        hello = self.wait_for_node(ray, gpus)
        self.check(hello)
        work = str(hello["work"])
        self.emit(f"sending inputs to {hello['host']}")
        files, here = transfer.send_inputs(self.actor, self.request, work)
        self.progress = transfer.Progress(self.folder, here | {f"{work}/job": str(self.folder)})
        limits = {
            "python": self.order.python,
            "time_limit_s": self.order.time_limit_s,
            "memory_limit_bytes": self.order.memory_limit_bytes,
        }
        while not self.actor.call("begin", json.dumps(self.request), files, limits):
            self.emit(f"waiting for the GPUs of {hello['host']}: another samebits job has them")
            time.sleep(WAITING_S)
        outcome = self.follow(time.monotonic() + self.order.time_limit_s + OVERTIME_S)
        try:
            transfer.fetch(self.actor, self.folder)
        except Damaged:
            self.actor.call("close")  # what was refused is not left on the node either
            raise
        self.actor.call("close")
        return outcome

    def gpus(self, ray: Any) -> int:
        """GPUs to ask for: none where the cluster has none and the request does not insist."""
        experiment = self.request.get("experiment", self.request)
        insists = experiment.get("device") == "cuda"
        return self.order.gpus if insists or ray.cluster_resources().get("GPU", 0) else 0

    def wait_for_node(self, ray: Any, gpus: int) -> dict[str, Any]:
        """What the node says once the cluster gives one."""
        assert self.actor is not None
        while (hello := self.actor.ready(WAITING_S)) is None:
            most = max((node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
            none = f"no node has {gpus} GPUs now (at most {most:.0f})" if most < gpus else "all nodes are busy"
            self.emit(f"waiting for a node: {none}")
        return hello

    def check(self, hello: dict[str, Any]) -> None:
        """Both sides are the same samebits.

        Raises:
            UserError: they are not.
        """
        if hello["samebits"] != (own := version("samebits")):
            raise UserError(
                f"node {hello['host']}",
                f"has samebits {hello['samebits']}, this is {own}",
                "install the same version on every node",
            )

    def follow(self, until: float) -> Outcome:
        """Until the job has ended."""
        assert self.actor is not None
        assert self.progress is not None
        while (outcome := self.progress.take(self.actor)) is None:
            if time.monotonic() > until:
                raise Lost("its warden does not end the job, long after its time limit")
            time.sleep(POLL_S)
        return outcome

    def stop(self) -> None:
        """Have the job ended on its node, then the actor."""
        if self.actor is None:
            return
        if self.progress is not None:
            with suppress(Lost, Exception):
                self.actor.call("cancel")
                self.follow(time.monotonic() + GRACE_S - 5.0)
                self.actor.call("close")
        self.actor.end()


def outcome_of(run: Run) -> Outcome:
    """Carry it out; every way it can end becomes an Outcome."""
    try:
        return run.carry_out()
    except Stopped:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        run.stop()
        return Cancelled()
    except UserError as error:
        return Failed(error="user", message=str(error))
    except Lost as error:
        if "ModuleNotFoundError" in str(error):
            return Failed(
                error="user", message=f"a node lacks samebits: {error}. Next: install it in Ray's environment"
            )
        where = run.actor.where if run.actor else "the cluster"
        said = f"node lost: {where} went away in mid-job ({str(error)[:300]}); nothing was kept or tried again"
        return Failed(error="node_lost", message=f"{said}. Next: run it anew")
    except Damaged as error:
        return Failed(error="resource", message=f"refused what came back: {error}. Next: run it anew")
    except OSError as error:
        return Failed(error="resource", message=f"{type(error).__name__}: {error}")


def stop(_signal: int, _frame: FrameType | None) -> None:
    """Signal handler."""
    raise Stopped


def main() -> None:
    """Entry point."""
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    run = Run(folder)
    outcome = outcome_of(run)
    part = folder / "result.json.part"
    part.write_text(outcome.model_dump_json(indent=1), encoding="utf-8")
    os.replace(part, folder / "result.json")
    if run.actor is not None:
        with suppress(Exception):
            run.actor.end()


if __name__ == "__main__":
    main()
