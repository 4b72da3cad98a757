"""The words of errors and of what is empty: one style, whoever found the mistake."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("strays")]


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("wait_job", {"job": "x", "bogus": 1}, "wait_job: unknown argument 'bogus'. Next: it takes job, log_lines"),
        ("wait_job", {"seconds": "soon"}, "wait_job: seconds: must be a number, got 'soon'. Next: correct"),
        ("wait_job", {"job": ["x"]}, "wait_job: job: must be text, got ['x']. Next:"),
        ("capture_activations", {}, "capture_activations: side: is missing. Next:"),
        ("capture_activations", {"side": 3}, "capture_activations: side: must be 'rollout' or 'trainer', got 3. Next:"),
        ("measure_gap", {"config": "none.toml"}, "measure_gap: "),
        ("wait_job", {"job": "none"}, "wait_job: no job 'none'. Next:"),
        ("build_kernel", {"candidate": "silu_mull"}, "build_kernel: silu_mull: neither a candidate folder nor"),
        ("nothing", {}, "Unknown tool"),
    ],
)
async def test_unknown_and_wrong_arguments_are_named_in_plain_words(
    tool: str, arguments: dict[str, Any], words: str, connected: Any, error_of: Any
) -> None:
    async with connected() as client:
        text = error_of(await client.call_tool(tool, arguments))
    assert text.startswith(words)
    assert "Error executing tool" not in text
    assert text.count(f"{tool}: ") <= 1
    assert "pydantic" not in text
    assert "http" not in text


async def test_an_empty_log_says_so(connected: Any, doing: Any) -> None:
    async with connected() as client:
        answer = (await client.call_tool("measure_gap", doing("rows", 1))).structured_content
        page = await client.read_resource(f"job://{answer['job']}/log")
    assert page.contents[0].text == "log.txt is empty: nothing was written."
