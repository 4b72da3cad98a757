"""samebits.toml: every mistake is named with its line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from samebits.tools.schema import reader
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, text: str) -> Path:
    path = folder / reader.NAME
    path.write_text(text, encoding="utf-8")
    return path


def test_the_template_is_valid_and_shows_the_defaults(tmp_path: Path) -> None:
    text = reader.TEMPLATE.read_text(encoding="utf-8")
    read = reader.read(written(tmp_path, text))
    assert read.model_copy(update={"rollout": Experiment().rollout}) == Experiment()
    bare = "\n".join(line.removeprefix("# ") if "=" in line else line for line in text.splitlines()[3:])
    shown = reader.read(written(tmp_path, bare))
    assert shown.workload.new_tokens == Experiment().workload.new_tokens
    assert shown.trainer.layout == Experiment().trainer.layout
    assert shown.pool.phase_time_limit_s == {"open": 600, "*": 1800}, "an example: the default is no limit"
    assert shown.pool.model_copy(update={"phase_time_limit_s": {}}) == Experiment().pool


def test_paths_are_taken_from_the_folder_of_the_file(tmp_path: Path) -> None:
    assert reader.read(written(tmp_path, '[rollout]\nmodel = "m"\n')).rollout.model == str(tmp_path / "m")


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ('[rollout]\ndtype = "bf16"\n', 2, "rollout.dtype"),
        ("[workload]\n\ntemprature = 1.0\n", 3, "unknown key"),
        ("[trainer]\nmicro_batch = 0\n", 2, "micro_batch"),
        ("[nonsense]\n", 1, "unknown key"),
        ("rollout.eager = 3\n", 1, "eager"),
        (
            '[rollout]\nside = "vlm"\n',
            2,
            "rollout.side: input should be 'vllm', 'transformers', 'python:...' or 'file:...'",
        ),
        ('[rollout]\nside = "python:"\n', 2, "got 'python:'"),
        ('[trainer]\n\nside = "vllm"\n', 3, "trainer.side: input should be 'transformers' or 'python:...', got 'vllm'"),
        ("[trainer]\nside = 3\n", 2, "trainer.side"),
    ],
)
def test_a_mistake_names_line_key_and_expectation(tmp_path: Path, text: str, line: int, word: str) -> None:
    with pytest.raises(UserError) as caught:
        reader.read(written(tmp_path, text))
    assert f"{reader.NAME}:{line}" in str(caught.value)
    assert word in str(caught.value)
    assert "Next:" in str(caught.value)


@pytest.mark.parametrize("text", ["[rollout", "a = = 1\n"])
def test_what_is_not_toml_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="not valid TOML"):
        reader.read(written(tmp_path, text))


def test_a_missing_file_names_init(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="samebits init"):
        reader.read(tmp_path)


def test_overrides_win_and_are_checked(tmp_path: Path) -> None:
    path = written(tmp_path, '[rollout]\ndtype = "float16"\n')
    assert reader.read(path, ("rollout.dtype=float32", "workload.prompts=3")).rollout.dtype == "float32"
    with pytest.raises(UserError, match=r"section\.key=value"):
        reader.read(path, ("rollout",))
    with pytest.raises(UserError, match="unknown key"):
        reader.read(path, ("rollout.dtyp=float32",))


def test_what_is_not_text_is_said(tmp_path: Path) -> None:
    (tmp_path / reader.NAME).write_bytes(b"\xff\xfe[rollout]")
    with pytest.raises(UserError, match="not UTF-8"):
        reader.read(tmp_path)


def test_an_override_is_blamed_itself_and_names_the_key_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--set: rollout\.kernels: "):
        reader.read(written(tmp_path, ""), ("rollout.kernels=3",))
    with pytest.raises(UserError, match="both"):
        reader.read(written(tmp_path, ""), ("rollout=3", "rollout.dtype=float32"))


def test_the_model_of_a_python_side_is_left_as_it_stands(tmp_path: Path) -> None:
    path = written(tmp_path, '[rollout]\nmodel = "m"\n[trainer]\nside = "python:package:factory"\nmodel = "seed-7"\n')
    read = reader.read(path)
    assert read.trainer.model == "seed-7"
    assert read.rollout.model == str(tmp_path / "m")


def test_candidate_folders_are_taken_from_the_files_own_folder(tmp_path: Path) -> None:
    path = written(
        tmp_path, '[rollout]\nkernels = "samebits"\n[trainer]\nkernels = ["kernels/turn", "/elsewhere/norm"]\n'
    )
    read = reader.read(path)
    assert read.trainer.kernels == (str(tmp_path / "kernels/turn"), "/elsewhere/norm")
    assert read.rollout.kernels == "samebits"


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    path.write_bytes(b"\xef\xbb\xbf[rollout]\n")
    with pytest.raises(UserError, match=r"begins with a byte order mark\. Next: save it as UTF-8 without BOM"):
        reader.read(path)
