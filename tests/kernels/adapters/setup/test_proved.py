"""samebits.lock at start-up: proven, or one error that names what changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.setup import driver, proved
from samebits.kernels.adapters.setup import lock as lock_file
from samebits.tools.schema.base import SCHEMA_VERSION

ASKED = {"kernels": "vllm", "dtype": "bfloat16"}


def lock(folder: Path, **changed: str) -> Path:
    held: dict[str, Any] = {
        "schema_version": 1,
        "axes": {"trainer_repeat": 32},
        "proved": {"trainer": proved.fingerprint("trainer") | changed},
        "settings": {"trainer": ASKED | {"layout": "packed"}},
    }
    path = folder / "samebits.lock"
    path.write_text(json.dumps(held))
    return path


def test_the_same_set_up_is_proved(tmp_path: Path) -> None:
    standing = proved.compare("trainer", ASKED, lock(tmp_path), False)
    assert standing.proved
    assert str(standing).startswith("proved by ")


def test_no_lock_proves_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SAMEBITS_LOCK", raising=False)
    standing = proved.compare("trainer", ASKED, None, False)
    assert (standing.proved, str(standing)[:10]) == (False, "not proved")


@pytest.mark.parametrize(
    ("changed", "asked", "said"),
    [
        ({"torch": "1.0"}, ASKED, "torch: proved 1.0, now "),
        ({"kernels_digest": "0"}, ASKED, "kernels_digest: proved 0, now "),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, ASKED, "ONEDNN_MAX_CPU_ISA: proved AVX2, now without"),
        ({}, ASKED | {"dtype": "float32"}, "dtype: proved bfloat16, now float32"),
    ],
)
def test_one_error_names_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], asked: dict[str, str], said: str
) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    with pytest.raises(PatchError, match=said):
        proved.compare("trainer", asked, lock(tmp_path, **changed), False)


def test_allowed_it_is_a_warning_that_every_report_can_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="UNPROVEN"):
        standing = proved.compare("trainer", ASKED, lock(tmp_path, torch="1.0"), True)
    assert "torch: proved 1.0" in str(standing)
    assert not standing.proved
    monkeypatch.setenv("SAMEBITS_ALLOW_UNPROVEN", "1")
    with pytest.warns(UserWarning, match="UNPROVEN"):
        assert not proved.compare("trainer", ASKED, tmp_path / "samebits.lock", False).proved


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """What a CUDA machine adds to a fingerprint, its driver under this version; there is no GPU here."""
    real = proved.fingerprint
    facts = {"gpu": "NVIDIA H200", "cuda": "13.0", "cublaslt": "130100", "driver": version}
    monkeypatch.setattr(proved, "fingerprint", lambda role: real(role) | facts)


def test_a_driver_that_nobody_knows_is_equal_to_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch, "580.159.04")
    assert proved.compare("trainer", ASKED, lock(tmp_path), False).proved, "the control: a known one is equal to itself"
    with pytest.raises(PatchError, match="driver: proved unknown, now 580"):
        proved.compare("trainer", ASKED, lock(tmp_path, driver="unknown"), False)
    on_a_gpu(monkeypatch, driver.UNKNOWN)
    with pytest.raises(PatchError, match="driver: proved unknown, now unknown"):
        proved.compare("trainer", ASKED, lock(tmp_path), False)


def test_the_driver_is_asked_for_in_three_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "smi"
    smi.write_text("#!/bin/sh\necho 580.159.03\necho 580.159.03\n")
    smi.chmod(0o755)
    module = tmp_path / "version"
    module.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Nov  4 2025\nGCC version: 12.3.0\n"
    )
    monkeypatch.setattr(driver, "NVML", "no-such-library.so")
    monkeypatch.setattr(driver, "KERNEL_MODULE", module)
    monkeypatch.setattr(driver, "SMI", (str(smi),))
    assert driver.version() == "580.159.04"
    module.unlink()
    assert driver.version() == "580.159.03"
    smi.unlink()
    assert driver.version() == driver.UNKNOWN
    monkeypatch.setattr(driver, "NVML", "libc.so.6")
    assert driver.version() == driver.UNKNOWN, "a library that is no NVML"


def test_where_the_lock_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAMEBITS_LOCK", raising=False)
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    assert proved.find(None) is None
    path = lock(tmp_path / "a")
    assert proved.find(None) == path
    monkeypatch.setenv("SAMEBITS_LOCK", str(tmp_path / "elsewhere.lock"))
    with pytest.raises(PatchError, match="no lock file there"):
        proved.find(None)
    assert proved.find(path) == path


def test_a_damaged_lock_and_one_without_this_side_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "samebits.lock"
    for text in ("{", "[]", '{"axes": {}}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(PatchError, match=r"no lock of this version.*Next: run samebits gate again"):
            proved.compare("trainer", ASKED, path, False)
    with pytest.raises(PatchError, match="proves nothing of the rollout side"):
        proved.compare("rollout", ASKED, lock(tmp_path), False)


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ({"schema_version": 99}, "schema_version 99, this samebits reads 1"),
        ({"schema_version": "1"}, "schema_version '1', this samebits reads 1"),
        ({"axes": {}}, "proves nothing: it names no axis"),
        ({"axes": ["repeat"]}, "a section has another form"),
        ({"proved": {"trainer": "everything"}}, "a section has another form"),
        ({"proved": {"trainer": {"torch": 2}}}, "a section has another form"),
        ({"settings": {"trainer": []}}, "a section has another form"),
        ({"engine_sets": "X=1"}, "a section has another form"),
    ],
)
@pytest.mark.parametrize("allow", [False, True])
def test_a_lock_of_another_version_or_form_or_without_an_axis_is_no_proof(
    tmp_path: Path, planted: dict[str, Any], said: str, allow: bool
) -> None:
    path = lock(tmp_path)
    assert proved.compare("trainer", ASKED, path, allow).proved, "the control"
    path.write_text(json.dumps(json.loads(path.read_text()) | planted))
    with pytest.raises(PatchError, match=f"{said}.*Next: run samebits gate again"):
        proved.compare("trainer", ASKED, path, allow)


def test_the_version_that_is_read_is_the_one_that_the_gate_writes() -> None:
    assert lock_file.SCHEMA_VERSION == SCHEMA_VERSION


def test_what_the_proved_engine_set_for_itself_is_no_change_and_anything_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, name = lock(tmp_path), "VLLM_DISABLE_SHARED_EXPERTS_STREAM"
    monkeypatch.setenv(name, "1")
    with pytest.raises(PatchError, match=f"{name}: proved without, now 1"):
        proved.compare("trainer", ASKED, path, False)
    held = json.loads(path.read_text())
    path.write_text(json.dumps(held | {"engine_sets": {name: "1"}}))
    assert proved.compare("trainer", ASKED, path, False).proved
    monkeypatch.setenv(name, "0")
    with pytest.raises(PatchError, match=f"{name}: proved without, now 0"):
        proved.compare("trainer", ASKED, path, False)
    monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_USE_DEEP_GEMM", "1")
    with pytest.raises(PatchError, match="VLLM_USE_DEEP_GEMM: proved without, now 1"):
        proved.compare("trainer", ASKED, path, False)


def test_keys_and_places_void_no_lock_and_are_in_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lock(tmp_path)
    places = ("VLLM_CACHE_ROOT", "VLLM_HOST_IP", "VLLM_PORT", "VLLM_ASSETS_CACHE", "VLLM_LOGGING_CONFIG_PATH")
    for name in ("VLLM_API_KEY", "VLLM_HF_TOKEN", "VLLM_S3_SECRET_ACCESS_KEY", "NCCL_DEBUG", *places):
        monkeypatch.setenv(name, "planted")
    assert "planted" not in proved.fingerprint("rollout").values()
    assert proved.compare("trainer", ASKED, path, False).proved


@pytest.mark.parametrize(
    "name", ["VLLM_KV_CACHE_LAYOUT", "VLLM_NCCL_SO_PATH", "VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD", "CUBLAS_WORKSPACE"]
)
def test_a_name_that_only_looks_like_a_place_or_a_key_counts(name: str) -> None:
    assert proved.fingerprint("rollout", {name: "x"})[name] == "x"


def test_what_only_an_engine_reads_is_no_matter_of_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_ATTN_SPLIT_KV", "1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    assert "VLLM_CPU_ATTN_SPLIT_KV" in proved.fingerprint("rollout")
    assert "VLLM_CPU_ATTN_SPLIT_KV" not in proved.fingerprint("trainer")
    assert "VLLM_LOGGING_LEVEL" not in proved.fingerprint("rollout")


def test_any_byte_of_a_kernel_changes_the_digest(tmp_path: Path) -> None:
    copy = tmp_path / "kernels"
    shutil.copytree(proved.KERNELS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    digest = proved.kernels_digest(copy)
    assert digest == proved.kernels_digest()
    planted = copy / "ops" / "planted.py"
    planted.write_text("x = 1\n")
    assert proved.kernels_digest(copy) != digest
    planted.unlink()
    assert proved.kernels_digest(copy) == digest
    table = copy / "ops" / "linear" / "table_sm90.json"
    table.write_text(table.read_text() + " ")
    assert proved.kernels_digest(copy) != digest
