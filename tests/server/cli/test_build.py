"""What `samebits build` and `build_kernel` ask for; the worker itself is not started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from samebits.server.cli import main
from samebits.tools.schema.errors import UserError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, project: Path) -> list[Any]:
    """Requests that would be carried out."""
    found: list[Any] = []
    monkeypatch.setattr(main, "execute", lambda request, *_, **__: found.append(request))
    return found


def with_gate(project: Path, line: str) -> None:
    file = project / "samebits.toml"
    file.write_text(file.read_text() + f"memory_limit_mib = 900\n[gate]\n{line}\n")


def test_a_sandbox_is_required_by_the_flag_or_the_file_and_never_taken_back(asked: list[Any], project: Path) -> None:
    main.build("rms_norm")
    assert (asked[-1].sandbox, asked[-1].memory_limit_mib) == ("auto", 0)
    main.build("rms_norm", sandbox="required")
    assert asked[-1].sandbox == "required"
    with_gate(project, 'sandbox = "required"')
    main.build("rms_norm", sandbox="auto")
    assert (asked[-1].sandbox, asked[-1].memory_limit_mib) == ("required", 900)
    with pytest.raises(UserError, match="--sandbox off: not one of the two"):
        main.build("rms_norm", sandbox="off")


def test_another_word_in_the_file_is_refused(asked: list[Any], project: Path) -> None:
    with_gate(project, 'sandbox = "off"')
    with pytest.raises(UserError, match=r"gate\.sandbox"):
        main.build("rms_norm")
    assert asked == []
