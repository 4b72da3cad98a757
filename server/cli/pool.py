"""`samebits pool`: the daemon that shares this machine's slots between the servers and commands of one user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs.slots import Slots, default_folder
from samebits.server.pool.daemon import STOP_S, Daemon
from samebits.server.pool.spool import Spool
from samebits.tools.schema.errors import UserError

START_S = 60.0
app = typer.Typer(help="The daemon that keeps jobs going beyond one client and shares GPUs.", no_args_is_help=True)


@app.command()
def serve(
    detach: Annotated[bool, typer.Option("--detach", help="Go on in the background; output to daemon.log.")] = False,
) -> None:
    """Run the jobs of every samebits server and command of this user, until it is stopped."""
    spool = Spool()
    if detach:
        print(f"the pool runs (process {_detached(spool)}, {spool.folder})")
        return
    print(f"samebits pool: {spool.folder}", file=sys.stderr, flush=True)
    Daemon(spool, Slots(default_folder())).run()


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")] = False,
) -> None:
    """Say whether the pool runs and what it holds; exits 2 when it does not run."""
    spool = Spool()
    pid = spool.daemon()
    jobs = _jobs(spool)
    if as_json:
        print(json.dumps({"pid": pid, "folder": str(spool.folder), "jobs": jobs}, indent=1))
    else:
        print(f"the pool runs (process {pid}, {spool.folder})" if pid else f"no pool runs ({spool.folder})")
        for job in jobs:
            print(f"{job['state']:8} {job['needs']:6} {job['job']}")
        if jobs and not pid:
            print("; ".join(_left([job["state"] for job in jobs])) + ". Next: `samebits pool serve`")
    raise typer.Exit(0 if pid else 2)


@app.command()
def stop(
    keep_jobs: Annotated[
        bool, typer.Option("--keep-jobs", help="What runs goes on; the next start takes it up.")
    ] = False,
) -> None:
    """Stop the pool and what it runs; jobs that wait stay for its next start."""
    spool = Spool()
    pid = spool.daemon()
    if pid is None:
        raise UserError("the pool", f"does not run ({spool.folder})", "`samebits pool serve` starts it")
    os.kill(pid, signal.SIGUSR1 if keep_jobs else signal.SIGTERM)
    until = time.monotonic() + STOP_S + 10
    while spool.daemon() == pid and time.monotonic() < until:
        time.sleep(0.05)
    if spool.daemon() == pid:
        raise UserError("the pool", f"process {pid} does not end", f"read {spool.folder / 'daemon.log'}")
    print("; ".join(["the pool has stopped", *_left([job["state"] for job in _jobs(spool)])]))


def _jobs(spool: Spool) -> list[dict[str, str]]:
    jobs = []
    for name in spool.names():
        if (order := spool.read(name)) is not None:
            folder = Path(order.folder)
            needs = order.where if order.where == "ray" else order.slot or f"{order.gpus} GPU"
            jobs.append({"job": str(folder), "state": job_folder.state(folder, owner_alive=False), "needs": needs})
    return jobs


def _left(states: list[str]) -> list[str]:
    """What becomes of jobs in these states while no daemon runs."""
    running = states.count("running")
    waiting = len(states) - running
    said = []
    if running:
        said.append(
            f"{running} running {'job goes' if running == 1 else 'jobs go'} on, to be adopted by its next start"
        )
    if waiting:
        said.append(f"{waiting} queued {'job waits' if waiting == 1 else 'jobs wait'} for its next start")
    return said


def _detached(spool: Spool) -> int:
    """Start the daemon in a session of its own; its process id.

    Raises:
        UserError: it did not come up.
    """
    if (pid := spool.daemon()) is not None:
        raise UserError("the pool", f"runs already (process {pid}, {spool.folder})", "`samebits pool stop` ends it")
    spool.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (spool.folder / "daemon.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "samebits.server.cli.main", "pool", "serve"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        if spool.daemon() == process.pid:
            return process.pid
        time.sleep(0.05)
    raise UserError("the pool", "did not start", f"read {spool.folder / 'daemon.log'}")
