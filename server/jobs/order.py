"""What it takes to carry out one job folder, made from its request and the [pool] section that applies."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Literal

from samebits.server.jobs.slots import Need, gpu_count, need_of
from samebits.tools.schema import reader
from samebits.tools.schema.base import Model
from samebits.tools.schema.experiment import Pool as Settings
from samebits.tools.schema.requests import ApplyRequest, ProposeRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samebits.tools.schema.requests import Request

AT_HOME = (ProposeRequest, ApplyRequest)
"""Never sent to another machine."""
SECRET = re.compile(r"(^|_)(TOKENS?|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?|APIKEY|KEY)(_|$)", re.IGNORECASE)
ELSEWHERE = frozenset(("inspect", "measure", "capture", "diff", "minimize", "build", "gate", "demo"))
"""Verbs that a Ray node can carry out. Proposals are about this repository, and a loop goes on from its own folder."""
RAY_FILE = "ray.json"
"""In the job folder of a job for Ray: its order, for the submitter."""


class Order(Model):
    """One job to be carried out; as JSON it is the ticket that the pool's daemon gets."""

    folder: str
    slot: str
    gpus: int
    """What it takes of this machine; with Ray, of a node: its GPUs there, if it has any."""
    python: str
    time_limit_s: float
    memory_limit_bytes: int
    where: Literal["here", "ray"] = "here"
    ray_address: str = ""
    env: dict[str, str] | None = None
    """The worker's environment; None: that of the process which starts it, without secrets."""
    cwd: str | None = None

    @property
    def need(self) -> Need:
        """The slots it waits for."""
        return Need(slot=self.slot, gpus=self.gpus)


def settings_of(request: Request, project: Path) -> Settings:
    """[pool] of the request's experiment, or, when it has none, of the project's experiment file; else the defaults.

    Raises:
        UserError: the project's file is not valid.
    """
    experiment = getattr(request, "experiment", None)
    if experiment is not None:
        found: Settings = experiment.pool
        return found
    found = reader.read(project).pool if (project / reader.NAME).is_file() else Settings()
    # The user's repository and the person's decision are on this machine.
    return found.model_copy(update={"backend": "embedded"}) if isinstance(request, AT_HOME) else found


def order_of(
    request: Request, folder: Path, settings: Settings, available: Callable[[], tuple[str, ...]], *, python: str = ""
) -> Order:
    """The order of one request.

    Args:
        available: gives the UUIDs of the GPUs here; not asked for Ray.

    Raises:
        UserError: more GPUs asked for than there are here.
    """
    remote = settings.backend == "ray" and request.kind in ELSEWHERE
    need = Need(slot="", gpus=gpu_count(request)) if remote else need_of(request, available())
    return Order(
        folder=str(folder),
        slot=need.slot,
        gpus=need.gpus,
        python=python or settings.worker_python,
        time_limit_s=settings.time_limit_s,
        memory_limit_bytes=settings.memory_limit_mib << 20,
        where="ray" if remote else "here",
        ray_address=settings.ray_address,
    )


def worker_environment(*, ray: bool = False) -> dict[str, str]:
    """This process's environment without what looks like a secret: workers run foreign code.

    Args:
        ray: keep what Ray's own client needs to be let into its cluster.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not SECRET.search(name) or (ray and name.startswith("RAY_AUTH_"))
    }
