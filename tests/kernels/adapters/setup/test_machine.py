"""One list of variables that change bits, one reading of the processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from samebits.kernels.adapters.setup import machine, proved
from samebits.tools.gate.candidate.runner import target_of
from samebits.tools.job.job import device_of
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment
from samebits.tools.store import fingerprint


def test_reports_and_locks_name_the_same_variables() -> None:
    given = {
        "SAMEBITS_KERNELS": "samebits",
        "ONEDNN_MAX_CPU_ISA": "X",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_LOGGING_LEVEL": "INFO",
        "HOME": "/",
    }
    expected = {"ONEDNN_MAX_CPU_ISA": "X", "SAMEBITS_KERNELS": "samebits"}
    assert machine.number_variables(given) == expected
    assert fingerprint.environment(given).variables == expected
    assert expected.items() <= proved.fingerprint("rollout", given).items()
    assert "SAMEBITS_KERNELS" not in proved.fingerprint("trainer", given)


def test_the_processor_is_told_by_its_instruction_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(flags: str, count: int = 2) -> str:
        one = f"processor : 0\nmodel name : Some CPU @ 2 GHz\nflags : {flags}\n\n"
        (tmp_path / "cpuinfo").write_text(one * count)
        return machine.cpu()

    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert "Some CPU @ 2 GHz, flags " in read("avx2 amx_tile")
    assert read("avx2 amx_tile") == read("amx_tile avx2", count=1)
    assert read("avx2 amx_tile") != read("avx2")
    assert read("avx2").startswith(machine.cpu_model())
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "absent")
    assert machine.cpu()


def test_the_lock_and_the_reports_read_one_processor() -> None:
    found: Any = fingerprint.environment({}).platform
    if "compute capability" not in found:
        assert proved.fingerprint("trainer", {})["cpu"].startswith(found)


def test_auto_is_what_torch_sees_and_never_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    for seen, found in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda seen=seen: seen)
        assert machine.device() == found
        assert device_of(Experiment(device="auto")) == found
    assert (machine.device("cpu"), machine.device("cuda")) == ("cpu", "cuda")
    with pytest.raises(UserError, match="torch sees no CUDA device"):
        target_of("linear", "cuda")
