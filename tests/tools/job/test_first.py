"""Which model folders a request will load: a missing one is said before anything else is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from samebits.tools.job import first
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import REQUEST

EXPERIMENT: dict[str, Any] = {"rollout": {"model": "one"}, "trainer": {"model": "two"}}


@pytest.mark.parametrize(
    ("asked", "folders"),
    [
        ({"kind": "measure"}, ["one", "two"]),
        ({"kind": "measure", "rollout": "rows.jsonl"}, ["two"]),
        ({"kind": "capture", "side": "rollout"}, ["one"]),
        ({"kind": "capture", "side": "trainer"}, ["two"]),
        ({"kind": "diff"}, ["one", "two"]),
        ({"kind": "diff", "against": "batch"}, ["one"]),
        ({"kind": "gate"}, ["one", "two"]),
        ({"kind": "gate", "tiny": "qwen3"}, []),
        ({"kind": "inspect"}, []),
        ({"kind": "rl"}, []),
    ],
)
def test_the_folders_of_a_request(asked: dict[str, Any], folders: list[str]) -> None:
    assert list(first.models(REQUEST.validate_python(asked | {"experiment": EXPERIMENT}))) == folders


def test_the_users_own_code_loads_what_it_likes() -> None:
    own = {"rollout": {"side": "python:a:b", "model": "one"}, "trainer": {"side": "python:a:b"}}
    assert list(first.models(REQUEST.validate_python({"kind": "measure", "experiment": own}))) == []


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    request = REQUEST.validate_python(
        {"kind": "measure", "experiment": {"rollout": {"model": str(tmp_path / "nowhere")}, "device": "cpu"}}
    )
    with pytest.raises(UserError, match="nowhere: no such folder"):
        first.check(request)
