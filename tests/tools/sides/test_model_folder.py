"""A model folder's index names its shards: files of that folder and no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from samebits.tools.schema.errors import UserError
from samebits.tools.sides.model_folder import check_model_folder

EMPTY = (2).to_bytes(8, "little") + b"{}"
"""A safetensors file without a tensor."""


@pytest.mark.parametrize(
    ("shard", "refused"),
    [
        ("whole.safetensors", False),
        ("sub/whole.safetensors", False),
        ("../outside.safetensors", True),
        ("sub/../../outside.safetensors", True),
        ("/outside.safetensors", True),
        (".hidden/whole.safetensors", True),
    ],
)
def test_a_shard_lies_in_its_folder(shard: str, refused: bool, tmp_path: Path) -> None:
    """Each of them is there and sound: the name alone decides."""
    folder = tmp_path / "model"
    name = str(tmp_path / shard[1:]) if shard[0] == "/" else shard
    for place in ("model/whole", "model/sub/whole", "model/.hidden/whole", "outside"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{place}.safetensors").write_bytes(EMPTY)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    if refused:
        with pytest.raises(UserError, match="names a shard outside the folder, or hidden"):
            check_model_folder(str(folder))
    else:
        assert check_model_folder(str(folder)) == folder
