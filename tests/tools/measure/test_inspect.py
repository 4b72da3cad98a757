"""What inspect says about an experiment before anything is started."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from samebits.tools.job.job import Job
from samebits.tools.measure import look
from samebits.tools.measure.inspect import run_inspect
from samebits.tools.measure.verb import run_measure
from samebits.tools.measure.workload_check import check_engine, check_workload
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment
from samebits.tools.schema.requests import InspectRequest, MeasureRequest

if TYPE_CHECKING:
    from collections.abc import Callable


def experiment(model: Path, **sections: Any) -> Experiment:
    base: dict[str, Any] = {
        "device": "cpu",
        "rollout": {"side": "transformers", "model": str(model), "max_model_len": 128},
        "trainer": {},
        "workload": {"prompt_tokens": (3, 40), "new_tokens": 8},
    }
    for name, section in sections.items():
        base[name] = base[name] | section if isinstance(section, dict) else section
    return Experiment.model_validate(base)


def failing(asked: Experiment) -> dict[str, str]:
    return {row["check"]: row["detail"] for row in look.look(asked) if row["outcome"] == "fails"}


def test_an_experiment_that_can_run_has_no_failing_row(models: Callable[..., Path]) -> None:
    rows = look.look(experiment(models(), trainer={"kernels": "vllm", "layout": "packed"}))
    assert [row for row in rows if row["outcome"] == "fails"] == []
    found = {row["check"]: row["detail"] for row in rows}
    assert "Qwen3ForCausalLM" in found["rollout model"]
    assert found["package torch"]
    assert "knows Qwen3ForCausalLM" in found["trainer kernels"]


@pytest.mark.vllm
def test_support_of_this_model_is_the_row_of_the_page(models: Callable[..., Path]) -> None:
    from samebits.kernels.adapters.tables import support

    def said(**trainer: Any) -> str:
        rows = {row["check"]: row["detail"] for row in look.look(experiment(models(), trainer=trainer))}
        return rows["support"]

    row = support.row("Qwen3ForCausalLM", "vllm", "cpu", "bfloat16")
    assert said(kernels="vllm") == support.in_words(row)
    assert re.search(r"decode exact \([1-9]\d+\)", said(kernels="vllm"))
    assert "decode measured: 1023 of 1024 differ" in said()
    assert said().endswith(support.in_words(row)), "a stock trainer also hears what the table would give"
    page = (Path(__file__).resolve().parents[3] / "docs/support.md").read_text()
    cells = " | ".join(phase.said for phase in row.phases.values())
    assert f"| Qwen3ForCausalLM | bfloat16 | {cells} |" in page


def test_what_the_patch_engine_would_refuse_fails_at_inspect(models: Callable[..., Path], tmp_path: Path) -> None:
    asked = experiment(models(), trainer={"kernels": "vllm", "dtype": "float16"})
    assert "dtype float16: is outside this table" in failing(asked)["trainer kernels"]
    scaled = Path(shutil.copytree(models(), tmp_path / "scaled"))
    config = json.loads((scaled / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}
    (scaled / "config.json").write_text(json.dumps(config))
    assert "rope_parameters" in failing(experiment(scaled, trainer={"kernels": "vllm"}))["trainer kernels"]


@pytest.mark.parametrize("side", ["rollout", "trainer"])
def test_a_candidate_that_does_not_claim_the_sides_dtype_or_device_fails_at_inspect(
    models: Callable[..., Path], side: str
) -> None:
    folder = Path(__file__).parents[1] / "gate" / "candidate" / "good"
    check = f"{side} kernels"

    def asked(dtype: str, device: str = "cpu") -> Experiment:
        return experiment(models(), device=device, **{side: {"kernels": (str(folder),), "dtype": dtype}})

    fits = {row["check"]: row for row in look.look(asked("float32"))}
    assert fits[check]["outcome"] == "ok"
    refused = {row["check"]: row for row in look.look(asked("bfloat16"))}
    assert refused[check]["outcome"] == "fails"
    assert refused[check]["detail"] == "candidate rows-in-pytorch: does not claim dtype bfloat16"
    assert "it was built for float32" in refused[check]["next"]
    if side == "rollout":  # the trainer's table refuses float32 on CUDA first
        assert failing(asked("float32", "cuda"))[check] == "candidate rows-in-pytorch: does not claim device cuda"


@pytest.mark.vllm
def test_the_hook_table_of_the_installed_vllm_matches(models: Callable[..., Path]) -> None:
    rows = {row["check"]: row for row in look.look(experiment(models(), rollout={"side": "vllm"}))}
    assert rows["hook table"]["outcome"] == "ok"
    assert "vLLM" in rows["rollout side"]["detail"]


@pytest.mark.vllm
def test_a_hook_that_does_not_match_is_a_failing_row_with_its_name(
    models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from samebits.tools.sides.vllm import hooks

    wrong = hooks.Hook("V1", "vllm.v1.sample.sampler", "Sampler.sample", ("nobody",), "planted")
    real = hooks.check
    monkeypatch.setattr(hooks, "check", lambda runner: real(runner, (*hooks.TABLE, wrong)))
    assert "Sampler.sample(nobody)" in failing(experiment(models(), rollout={"side": "vllm"}))["hook table"]


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("installed", "device", "env", "runner", "said"),
    [
        ("0.26.0", "cuda", {}, "MRV2", "tested"),
        ("0.26.0", "cuda", {"VLLM_USE_V2_MODEL_RUNNER": "0"}, "V1", "hooks match, not run"),
        ("0.32.0", "cpu", {}, "V1", "tested"),
    ],
)
def test_the_hook_table_is_that_of_the_runner_that_will_run(
    installed: str,
    device: str,
    env: dict[str, str],
    runner: str,
    said: str,
    models: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from samebits.tools.sides.vllm import hooks

    monkeypatch.setattr(hooks, "vllm_version", lambda: installed)
    monkeypatch.setattr(hooks, "check", lambda asked: [asked])
    asked = experiment(models(), device=device, rollout={"side": "vllm", "env": env})
    rows = {row["check"]: row["detail"] for row in look.look(asked)}
    assert rows["rollout side"] == f"vLLM {installed}, model runner {runner}: {said}"
    assert rows["hook table"] == f"1 rows match (model runner {runner})"


@pytest.mark.parametrize(
    ("sections", "check", "said"),
    [
        ({"rollout": {"model": "/absent"}}, "rollout model", "no such folder"),
        ({"trainer": {"model": "/absent"}}, "trainer model", "no such folder"),
        ({"trainer": {"side": "python:no_such:thing"}}, "trainer side", "cannot be imported"),
        ({"rollout": {"side": "file:/absent.jsonl"}}, "rollout side", "no such file"),
        ({"workload": {"new_tokens": 400}}, "workload", "max_model_len is 128"),
        ({"rollout": {"max_model_len": 4096}, "workload": {"new_tokens": 400}}, "workload", "the model takes 128"),
        ({"rollout": {"side": "vllm", "max_model_len": 129}}, "rollout length", "has 128 positions"),
        ({"workload": {"prompt_tokens": (9, 3)}}, "workload", "1 <= shortest <= longest"),
        ({"workload": {"prompt_tokens": (0, 3)}}, "workload", "1 <= shortest <= longest"),
        ({"workload": {"file": "/absent.jsonl"}}, "workload", "cannot be read"),
        ({"trainer": {"kernels": "vllm", "layout": "padded"}}, "trainer kernels", "padded"),
    ],
)
def test_each_thing_that_would_stop_a_run_is_named(
    sections: dict[str, Any], check: str, said: str, models: Callable[..., Path]
) -> None:
    assert said in failing(experiment(models(), **sections))[check]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"prompt_ids": [1]}\nnot json', "rows.jsonl:2: not JSON"),
        ('{"prompt_ids": [256]}', "token ids below 256"),
        ('{"prompt": "text"}', "there is no tokenizer in"),
        (json.dumps({"prompt_ids": [5] * 121}), "129 tokens at most"),
    ],
)
@pytest.mark.usefixtures("sides_here")
def test_a_prompts_file_is_read_by_inspect_and_by_measure_before_a_side_starts(
    text: str, said: str, models: Callable[..., Path], tmp_path: Path
) -> None:
    path, job = tmp_path / "rows.jsonl", Job(tmp_path / "job")
    job.folder.mkdir()
    path.write_text(text, encoding="utf-8")
    asked = experiment(models(), workload={"file": str(path)})
    assert said in failing(asked)["workload"]
    with pytest.raises(UserError) as caught:
        run_measure(MeasureRequest(experiment=asked), job)
    assert said in str(caught.value)
    assert list(job.folder.iterdir()) == [], "no side was opened, nothing was half-made"


def test_lengths_that_fit_and_a_stretched_model_are_let_through(models: Callable[..., Path], tmp_path: Path) -> None:
    path, folder = tmp_path / "rows.jsonl", tmp_path / "model"
    path.write_text(json.dumps({"prompt_ids": [5] * 120}), encoding="utf-8")
    assert "128 tokens at most" in check_workload(experiment(models(), workload={"file": str(path)}))
    long = {"side": "vllm", "max_model_len": 512}
    with pytest.raises(UserError, match="128 positions"):
        check_engine(experiment(models(), rollout=long))
    check_engine(experiment(models(), rollout=long | {"env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}))
    shutil.copytree(models(), folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["rope_scaling"] = {"rope_type": "linear", "factor": 4.0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    check_engine(experiment(folder, rollout=long))


def test_a_family_without_role_list_is_named(models: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models(), folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {
        "architectures": ["NobodysForCausalLM"]
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "NobodysForCausalLM" in failing(experiment(folder, trainer={"kernels": "vllm"}))["trainer kernels"]


def test_the_verb_looks_in_a_child_and_puts_failing_rows_first(models: Callable[..., Path], tmp_path: Path) -> None:
    asked = InspectRequest(experiment=experiment(models(), trainer={"model": "/absent"}))
    result = run_inspect(asked, Job(tmp_path))
    assert (result.verdict, result.exit_code) == ("unjudged", 2)
    assert result.rows[0]["check"] == "trainer model"
    assert "no such folder" in result.summary


def test_candidates_are_looked_at_before_a_side_starts(models: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "turn"
    folder.mkdir()
    (folder / "kernel.py").write_text("def run(q, k, positions, cache): ...\n")
    text = 'operator = "rotary"\nkind = "pytorch"\ndevices = ["cpu"]\n'
    (folder / "candidate.toml").write_text(text)
    asked = experiment(models(), trainer={"kernels": (str(folder),)})
    rows = {row["check"]: row for row in look.look(asked)}
    assert rows["trainer kernels"]["outcome"] == "ok"
    assert rows["trainer kernels"]["detail"].startswith("candidate turn ")
    (folder / "candidate.toml").write_text(text.replace("rotary", "rotor"))
    assert "operator 'rotor' is unknown" in failing(asked)["trainer kernels"]


def test_more_tokens_than_any_machine_holds_fail_at_inspect_with_the_bound(models: Callable[..., Path]) -> None:
    said = failing(experiment(models(), workload={"prompts": 100_000_000_000, "prompt_tokens": (4, 8)}))["workload"]
    assert "100000000000 prompts" in said
    assert "2**31 - 1" in said
    assert "random prompts" in check_workload(experiment(models(), workload={"prompts": 10, "prompt_tokens": (4, 8)}))
