"""Artifacts written and copied whole; on a full disk one error in plain words, and nothing half-written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.full_disk import FILL

from samebits.tools.schema.artifacts.base import Manifest
from samebits.tools.schema.errors import UserError
from samebits.tools.store import artifact
from samebits.tools.store.room import is_full

WRITE = (
    FILL
    + """
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from samebits.tools.schema.artifacts.base import Manifest
from samebits.tools.schema.errors import UserError
from samebits.tools.store import artifact
told, control = [], ""
for name in ("before", "after"):
    try:
        artifact.write(Path(name), Manifest(kind="x"), {"x.safetensors": {"x": torch.zeros(20_000)}})
    except UserError as error:
        told.append(str(error))
    fill()
try:
    save_file({"x": torch.zeros(20_000)}, "other.safetensors")
except SafetensorError as error:
    control = str(error)
print(json.dumps([told, sorted(path.name for path in Path().iterdir() if path.is_dir()), control]))
"""
)


def test_a_full_disk_is_one_error_though_safetensors_says_it_in_its_own_way(small_disk: Callable[..., str]) -> None:
    """The disk is a real file system of 512 KiB; the control is what safetensors itself raises there."""
    told, left, control = json.loads(small_disk(512, sys.executable, "-c", WRITE))
    assert "os error 28" in control
    assert len(told) == 1
    assert told[0].startswith("after: cannot be written (")
    assert "Next: free disk space or choose another run folder" in told[0]
    assert left == ["before"], "nothing half-written stays"


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(28, "No space left on device"), True),
        (RuntimeError('Io(Os { message: "No space left on device" })'), True),
        (ValueError("I/O error: (os error 28)"), True),
        (OSError(13, "Permission denied"), False),
        (ValueError("28"), False),
    ],
)
def test_only_a_full_disk_is_called_one(error: Exception, full: bool) -> None:
    assert is_full(error) is full


def test_a_copy_has_the_identity_of_what_was_copied_or_is_not_there(tmp_path: Path) -> None:
    source = tmp_path / "source"
    artifact.write(source, Manifest(kind="x"), texts={"a.txt": "one"})
    (source / "beside.txt").write_text("no part of it")
    artifact.copy(source, tmp_path / "copy")
    assert artifact.identity(tmp_path / "copy") == artifact.identity(source)
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["a.txt", "manifest.json"]
    (source / "a.txt").unlink()
    for folder in ("copy", "another"):
        with pytest.raises(UserError):
            artifact.copy(source, tmp_path / folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "source"], "nothing half-written stays"
