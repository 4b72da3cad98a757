"""Two prompts a person can pick: the whole alignment, and only the explanation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from samebits.server.mcp.context import App


TEXTS = Path(__file__).with_name("texts")
Config = Annotated[str, Field(description="samebits.toml or its folder")]


def text(name: str) -> str:
    """The words of a prompt."""
    return (TEXTS / f"{name}.md").read_text(encoding="utf-8")


def align_model(config: Config = "samebits.toml") -> str:
    """Find and remove the logprob difference between trainer and rollout."""
    return text("align-model").format(config=config)


def explain_gap(config: Config = "samebits.toml") -> str:
    """Explain the logprob difference between trainer and rollout without changing anything."""
    return text("explain-gap").format(config=config)


def register(server: MCPServer[App]) -> None:
    """Add them."""
    server.prompt(name="align-model", title="Align a model to exact zero")(align_model)
    server.prompt(name="explain-gap", title="Explain a logprob gap")(explain_gap)
