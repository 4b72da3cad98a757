"""The server in memory, spoken to by the SDK's own client in both eras of the protocol."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client

from samebits.server.jobs import launch
from samebits.server.mcp.app import make_server
from samebits.server.mcp.roots import Roots

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

ERAS = ("legacy", "auto")
"""The 2025-11-25 handshake, and 2026-07-28."""


@pytest.fixture
def connected(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractAsyncContextManager[Client]]:
    """connected(era="auto", **settings of make_server): a client of a server over `project`."""
    monkeypatch.setattr(launch, "GRACE_S", 0.5)

    @asynccontextmanager
    async def connect(era: str = "auto", **settings: Any) -> AsyncIterator[Client]:
        async with Client(make_server(Roots.of((project,)), **settings), mode=era) as client:  # type: ignore[arg-type]
            yield client

    return connect


def overrides(do: str, value: float = 0, **pool: Any) -> dict[str, Any]:
    """Arguments that make the stand-in behave so."""
    keys = [f"rollout.engine.do={do}", f"rollout.engine.value={value}"]
    return {"overrides": keys + [f"pool.{name}={setting}" for name, setting in pool.items()]}


@pytest.fixture
def doing() -> Callable[..., dict[str, Any]]:
    return overrides


def said(result: Any) -> str:
    """The text of a tool's error."""
    assert result.is_error, result
    return str(result.content[0].text)


@pytest.fixture
def error_of() -> Callable[[Any], str]:
    return said
