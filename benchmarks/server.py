"""Times the MCP server: start, size of its tool list, latency of calls, jobs per second.

    python benchmarks/server.py [--starts 10] [--calls 1000] [--jobs 50]

Start is from the process's creation to the answer of `initialize`, over stdio; its processor time (user + system) is
printed beside it, as a busy machine stretches the first and hardly the second. Calls are `wait_job()` (list) and
`wait_job(JOB)` over stdio, one after the other. Jobs are no-ops: /bin/true stands in for the worker's interpreter, so a
job is the queue, its warden, one process and its files; once queued in the server, once given to the pool's daemon.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters

COMMAND = [sys.executable, "-m", "samebits.server.cli.entry", "serve"]
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "benchmark", "version": "1"}}
CHARS_PER_TOKEN = 4


def start_once(folder: Path) -> tuple[float, float]:
    """Seconds until the first answer, and processor seconds of the server's whole (short) life."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.monotonic()
    process = subprocess.Popen(COMMAND, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO})
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()
    assert b'"serverInfo"' in process.stdout.readline()
    answered = time.monotonic() - begun
    process.kill()
    process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return answered, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def calls(folder: Path, count: int, jobs: int) -> None:
    """Print the size of the list, latencies, and jobs per second."""
    (folder / "samebits.toml").write_text('device = "cpu"\n[rollout]\nmodel = "model"\n')
    (folder / "model").mkdir(exist_ok=True)
    server = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], "--worker-python", "/bin/true"], cwd=folder, env=dict(os.environ)
    )
    async with Client(server, mode="legacy") as client:
        listed = (await client.list_tools()).model_dump_json(by_alias=True, exclude_none=True)
        print(f"tools/list: {len(listed)} characters, {len(listed) // CHARS_PER_TOKEN} tokens (characters / 4)")
        await client.call_tool("measure_gap", {})
        rows = (await client.call_tool("wait_job", {})).structured_content
        assert rows is not None
        for name, arguments in (("wait_job()", {}), ("wait_job(JOB)", {"job": rows["rows"][0]["job"]})):
            await timed(client, name, arguments, count)
        await queued(client, jobs, "in the server")
        daemon = subprocess.Popen([*COMMAND[:-1], "pool", "serve"], cwd=folder, stderr=subprocess.DEVNULL)
        try:
            while not (folder / "pool" / "daemon.json").exists():
                await anyio.sleep(0.05)
            await queued(client, jobs, "in the pool's daemon")
        finally:
            daemon.terminate()
            daemon.wait()


async def queued(client: Client, jobs: int, where: str) -> None:
    """Print how many jobs a second end when all are asked for at once."""
    begun = time.monotonic()
    async with anyio.create_task_group() as group:
        for _ in range(jobs):
            group.start_soon(client.call_tool, "measure_gap", {})
    print(f"jobs per second, one slot, {where}: {jobs / (time.monotonic() - begun):.1f} ({jobs} jobs)")


async def timed(client: Client, name: str, arguments: dict[str, Any], count: int) -> None:
    """Print median and p99 of so many calls."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        await client.call_tool("wait_job", arguments)
        taken.append((time.perf_counter() - begun) * 1000)
    taken.sort()
    print(
        f"{name}: median {statistics.median(taken):.1f} ms, p99 {taken[int(0.99 * len(taken))]:.1f} ms ({count} calls)"
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=50)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"SAMEBITS_LOCKS": str(folder / "locks"), "SAMEBITS_POOL": str(folder / "pool")}
        starts = [start_once(folder) for _ in range(asked.starts)]
        wall, own = (sorted(column) for column in zip(*starts, strict=True))
        median = statistics.median(wall)
        print(f"start: median {median:.2f} s, best {wall[0]:.2f} s; processor time {statistics.median(own):.2f} s")
        anyio.run(calls, folder, asked.calls, asked.jobs)


if __name__ == "__main__":
    main()
