"""On a GPU: digests equal those of the CPU, and compiled Triton launches are recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from samebits.tools.diff.digest import digest_rows, digest_whole

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("columns", [1, 3, 64, 4096, 5000, 20000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
def test_digests_are_those_of_the_cpu(columns: int, dtype: torch.dtype) -> None:
    for rows in (1, 17, 300):
        values = (torch.randn(rows, columns) * 50).to(dtype)
        assert torch.equal(digest_rows(values.cuda()).cpu(), digest_rows(values))
        assert torch.equal(digest_whole(values.cuda()).cpu(), digest_whole(values))


def test_many_rows_of_many_bytes() -> None:
    values = torch.randint(0, 256, (40000, 512), dtype=torch.uint8)
    assert torch.equal(digest_rows(values.cuda()).cpu(), digest_rows(values))


LAUNCH = """
import sys
from pathlib import Path
import torch, triton, triton.language as tl
from triton.runtime.jit import JITFunction
from samebits.tools.align.taps import Taps
from samebits.tools.capture.recorder import Recorder
from samebits.tools.capture.rows import PassRows
from samebits.tools.schema.sites import CapturePlan

CONFIGS = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})]

@triton.autotune(configs=CONFIGS, key=["n"], restore_value=["y_ptr"])
@triton.jit
def add_scaled(x_ptr, y_ptr, out_ptr, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = tl.load(y_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x + y, mask=i < n)
    tl.store(out_ptr + i, (x + y) * scale, mask=i < n)

class Kernel(torch.nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        add_scaled[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel(), 2.0)
        return out

class Map:
    def current(self):
        return PassRows(torch.zeros(6, dtype=torch.int32), torch.arange(6, dtype=torch.int32), None, None)

run = JITFunction.run
x, y = torch.randn(6, 4).cuda(), torch.randn(6, 4).cuda()
old = y.clone()
plan = CapturePlan(level="operator", store="tensors", replay=True)
with torch.no_grad(), Recorder(Kernel(), Map(), plan) as recorder:
    recorder.root(x, y)
recorder.write(Path(sys.argv[1]))
assert JITFunction.run is run
taps = Taps.open(Path(sys.argv[1]))
launches = {tap.site.op + "#" + str(tap.site.index) for tap in taps.manifest.taps if tap.site.op.startswith("triton.")}
assert launches == {"triton.add_scaled#0"}, launches
name = "/triton.add_scaled#0"
assert torch.equal(taps.value(name + ":in.y_ptr"), old.cpu())
assert torch.equal(taps.value(name + ":mut.y_ptr"), (old + x).cpu())
assert torch.equal(taps.value(name + ":mut.out_ptr"), ((old + x) * 2).cpu())
done = {str(r.site): r for r in taps.manifest.replays}
assert done[name + ":out0"].equal and done[name + ":out0"].calls == 1
print("seen")
"""


def test_compiled_launches_are_recorded_once_and_the_autotuner_is_let_through(tmp_path: Path) -> None:
    script = tmp_path / "launch.py"  # Triton reads a kernel's source from its file
    script.write_text(LAUNCH, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "capture")], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().endswith("seen"), done.stderr
