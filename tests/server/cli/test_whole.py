"""Files of the command line are whole or not there; the full disk is a planted error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from samebits.server.cli import whole


def test_a_file_is_written(tmp_path: Path) -> None:
    whole.write(tmp_path / "a", "text")
    whole.write(tmp_path / "a", "other")
    assert (tmp_path / "a").read_text() == "other"
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for text in ("text", "other"):
        whole.write(tmp_path / "link", text)
        assert (tmp_path / "a").read_text() == text
    assert (tmp_path / "link").is_symlink()


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole.write(tmp_path / "a", "text")
    real = Path.write_text

    def half(path: Path, text: str, encoding: str) -> int:
        real(path, text[:1], encoding)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    for name in ("a", "b"):
        with pytest.raises(OSError, match="No space"):
            whole.write(tmp_path / name, "other")
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "text"


def test_a_device_is_written_to_in_place() -> None:
    whole.write(Path("/dev/null"), "text")
    assert not Path("/dev/null").is_file()
