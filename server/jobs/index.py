"""The list of jobs: one SQLite file beside the job folders. Lost or damaged, it is made again from the folders."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import hidden
from samebits.server.jobs.warden import start_of
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.server.jobs.folder import State

FILE = "index.sqlite3"
SCHEMA = """CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, created REAL NOT NULL, started REAL, ended REAL,
    owner INTEGER NOT NULL, owner_start TEXT NOT NULL)"""
COLUMNS = "id, kind, state, created, started, ended, owner, owner_start"
BUSY_S = 20.0
TAKEN_UP_S = 86400.0
"""A queue that is older is nobody's any more: what waits in it is interrupted."""


@dataclass(frozen=True, slots=True)
class Row:
    """One job. Times in Unix seconds."""

    id: str
    kind: str
    state: State
    created: float
    started: float | None
    ended: float | None
    owner: int
    owner_start: str

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in job_folder.ENDED


class Index:
    """Jobs under one root folder. Every server of a project shares the file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            hidden.make(root)
            self.connection = self._open()
        except (OSError, sqlite3.OperationalError) as error:
            raise UserError(str(root), f"jobs cannot be kept here: {error}", "check the path and the disk") from error
        self.adopt()

    def _open(self) -> sqlite3.Connection:
        path = self.root / FILE
        try:
            return _connect(path)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            # No room for the list: this process keeps its own, made from the folders.
            return _connect(":memory:")
        except sqlite3.DatabaseError:
            path.replace(path.with_suffix(f".damaged-{time.time_ns()}"))
            return _connect(path)

    def folder(self, job: str) -> Path:
        """A job's folder."""
        return self.root / job

    def add(self, job: str, kind: str) -> None:
        """A queued job of this process.

        Raises:
            UserError: it cannot be written down.
        """
        try:
            self._insert(Row(job, kind, "queued", time.time(), None, None, os.getpid(), start_of(os.getpid())))
        except sqlite3.OperationalError as error:
            raise UserError(str(self.root / FILE), str(error), "make room on the disk (`samebits gc`)") from error

    def set_state(self, job: str, state: State) -> None:
        """Note a change, with its time."""
        stamp = "ended" if state in job_folder.ENDED else "started"
        # The folder is the truth: a list that cannot be written (a full disk) must not end the server.
        with suppress(sqlite3.OperationalError):
            self.connection.execute(f"UPDATE jobs SET state = ?, {stamp} = ? WHERE id = ?", (state, time.time(), job))

    def get(self, job: str) -> Row | None:
        """One job, its state brought up to date; one that the command line has just made is taken in."""
        query = f"SELECT {COLUMNS} FROM jobs WHERE id = ?"
        found = self.connection.execute(query, (job,)).fetchone()
        if found is None and (self.folder(job) / "request.json").is_file():
            self.adopt()
            found = self.connection.execute(query, (job,)).fetchone()
        return self._fresh(_row(found)) if found else None

    def rows(self, *, limit: int = 20, offset: int = 0) -> list[Row]:
        """Newest first."""
        query = f"SELECT {COLUMNS} FROM jobs ORDER BY created DESC, id DESC LIMIT ? OFFSET ?"
        return [self._fresh(_row(entry)) for entry in self.connection.execute(query, (limit, offset)).fetchall()]

    def count(self) -> int:
        """Jobs there are in all."""
        return int(self.connection.execute("SELECT COUNT(*) FROM jobs").fetchone()[0])

    def every(self) -> list[Row]:
        """All jobs, newest first, those too that a full disk kept off the list."""
        rows = self.rows(limit=self.count() or 1)
        there, listed = self._there(), {row.id for row in rows}
        return rows + [_found(name, path) for name, path in there.items() if name not in listed]

    def left_behind(self) -> list[Row]:
        """Jobs of a server that is gone, oldest first, that it had queued within a day and never started."""
        query = f"SELECT {COLUMNS} FROM jobs WHERE state IN ('queued', 'interrupted') AND owner != 0 AND created > ?"
        rows = map(_row, self.connection.execute(f"{query} ORDER BY created, id", (time.time() - TAKEN_UP_S,)))
        return [
            row
            for row in rows
            if not job_folder.alive(row.owner, row.owner_start) and job_folder.never_started(self.folder(row.id))
        ]

    def claim(self, row: Row) -> bool:
        """Make a job that was left behind this process's own; False: another server was first."""
        change = "state = 'queued', started = NULL, ended = NULL, owner = ?, owner_start = ?"
        with suppress(sqlite3.OperationalError):
            done = self.connection.execute(
                f"UPDATE jobs SET {change} WHERE id = ? AND owner = ? AND owner_start = ?",
                (os.getpid(), start_of(os.getpid()), row.id, row.owner, row.owner_start),
            )
            return done.rowcount == 1
        return False

    def let_go(self, job: str) -> None:
        """Leave a job that was never started to the next server."""
        with suppress(sqlite3.OperationalError):
            self.connection.execute("UPDATE jobs SET owner_start = '' WHERE id = ?", (job,))

    def forget(self, job: str) -> None:
        """Take a job off the list; where that cannot be written, `adopt` does it later."""
        with suppress(sqlite3.OperationalError):
            self.connection.execute("DELETE FROM jobs WHERE id = ?", (job,))

    def adopt(self) -> None:
        """List the folders that are not listed yet (made by the command line, or by an index that was lost), and drop
        the entries whose folder is gone. On a full disk the list stays as it is.
        """
        listed = {str(entry[0]) for entry in self.connection.execute("SELECT id FROM jobs").fetchall()}
        there = self._there()
        with suppress(sqlite3.OperationalError):
            for name, path in there.items():
                if name not in listed:
                    self._insert(_found(name, path))
        for name in listed - there.keys():
            self.forget(name)

    def _there(self) -> dict[str, Path]:
        """Job folders by name."""
        return {
            path.name: path for path in self.root.iterdir() if path.name[0] != "." and (path / "request.json").is_file()
        }

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def _insert(self, row: Row) -> None:
        values = (row.id, row.kind, row.state, row.created, row.started, row.ended, row.owner, row.owner_start)
        # A server's own entry stands before one that another server made of the same folder a moment ago.
        mode = "REPLACE" if row.owner else "IGNORE"
        self.connection.execute(f"INSERT OR {mode} INTO jobs ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def _fresh(self, row: Row) -> Row:
        """The entry with the state its folder shows now; a change is written down."""
        if row.is_ended and row.state != "interrupted":
            return row
        owner = job_folder.alive(row.owner, row.owner_start) if row.owner else False
        state = job_folder.state(self.folder(row.id), owner_alive=owner)
        if state == row.state:
            return row
        self.set_state(row.id, state)
        found = self.connection.execute(f"SELECT {COLUMNS} FROM jobs WHERE id = ?", (row.id,)).fetchone()
        return _row(found) if found else row


def _connect(path: Path | str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        # What a crash of the machine costs is made again from the folders.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(SCHEMA)
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def _found(name: str, path: Path) -> Row:
    """The entry of a folder that no list holds."""
    created = (path / "request.json").stat().st_mtime
    return Row(name, _kind(path), job_folder.state(path, owner_alive=False), created, created, _ended(path), 0, "")


def _row(values: tuple[object, ...]) -> Row:
    return Row(*cast("tuple[str, str, State, float, float | None, float | None, int, str]", values))


def _kind(folder: Path) -> str:
    parts = folder.name.split("-")
    if len(parts) > 2 and parts[0].isdigit():
        return parts[2]
    # A name that a person gave with --out says nothing.
    with suppress(OSError, ValueError, AttributeError):
        return str(json.loads((folder / "request.json").read_bytes()).get("kind", ""))
    return ""


def _ended(folder: Path) -> float | None:
    for name in ("ended.json", "result.json"):
        with suppress(OSError):
            return (folder / name).stat().st_mtime
    return None
