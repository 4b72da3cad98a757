"""`samebits propose` and `samebits apply` before a worker is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from samebits.server.jobs.links import listed
from samebits.tools.schema.errors import UserError


@pytest.mark.parametrize("given", ["deadbeef", "xyz" * 5, "A" * 64, "a" * 65])
def test_a_patch_that_is_no_digest_is_refused_in_plain_words(tmp_path: Path, given: str) -> None:
    command = [sys.executable, "-m", "samebits.server.cli.main", "apply", "none", "--patch", given]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"patch: must be 12 to 64 hex digits, the beginning of a sha256, got '{given[:9]}" in " ".join(
        done.stderr.split()
    )
    assert list(tmp_path.iterdir()) == []


def test_a_proposals_folder_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer names it by the folder: it must not lead to another job of that name."""
    monkeypatch.chdir(tmp_path)
    jobs, first, second = tmp_path / ".samebits" / "jobs", tmp_path / "a" / "pr", tmp_path / "b" / "pr"
    with listed(first, alone=True):
        first.mkdir(parents=True)
    assert (jobs / "pr").resolve() == first
    taken = pytest.raises(UserError, match=r"another job of this project is named 'pr'\. Next: give another")
    with taken, listed(second, alone=True):
        second.mkdir(parents=True)
    assert not second.exists()
    with pytest.raises(KeyError), listed(tmp_path / "c" / "failed"):
        raise KeyError
    assert [path.name for path in jobs.iterdir()] == ["pr"], "what came to nothing is not listed"
