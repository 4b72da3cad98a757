"""Faults: each is the good candidate with one text replaced, and the leg that must be the first red one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GOOD = Path(__file__).parent / "good"


@dataclass(slots=True, frozen=True)
class Fault:
    leg: str
    old: str
    new: str
    says: str
    """What the red leg must say."""
    claims: str = ""
    slow: bool = False
    """A second or third fault of the same leg."""


RETURN = "    return y if residual is None else (y, s)\n"
FAULTS = {
    "does not import": Fault(
        "builds", "import torch\n", "import torch\nimport a_module_that_is_not_there\n", "a_module_that_is_not_there"
    ),
    "does not parse": Fault("builds", "def run(x, weight", "def run(x,, weight", "SyntaxError", slow=True),
    "gives another dtype": Fault(
        "builds", RETURN, RETURN.replace("(y, s)", "(y.double(), s)"), "torch.float64", slow=True
    ),
    "hangs": Fault("builds", "    total = total_of(s)\n", "    while True:\n        pass\n", "no answer within"),
    "crashes": Fault("builds", "    total = total_of(s)\n", "    import os\n    os.kill(os.getpid(), 11)\n", "SIGSEGV"),
    "ends the process": Fault("builds", "    total = total_of(s)\n", "    import os\n    os._exit(0)\n", "ended early"),
    "adds in place": Fault(
        "contained", "else x + residual\n    total", "else x.add_(residual).clone()\n    total", "changes its input x"
    ),
    "writes behind its output": Fault(
        "contained",
        "    y = y if weight",
        "    import ctypes\n    ctypes.memset(y.data_ptr() + 4 * y.numel(), 1, 4)\n    y = y if weight",
        "writes outside its output",
    ),
    "leaves elements unwritten": Fault(
        "contained",
        "    y = torch.where(torch.isnan(y), torch.nan, y)\n",
        "    z, y = y, torch.empty_like(y)\n    y[:, 1:] = z[:, 1:]\n",
        "never written",
        slow=True,
    ),
    "returns its input": Fault(
        "contained", RETURN, "    return y if residual is None else (y, x)\n", "view of the input x", slow=True
    ),
    "squares in half precision": Fault("accuracy", "pad(s * s,", "pad(s.half().float() ** 2,", "above 1.05"),
    "sums in another order": Fault(
        "bits", "    return fold(fold(squares))", "    return squares.sum((1, 2))", "not the bits of the contract"
    ),
    "changes after 50 calls": Fault(
        "repeat",
        RETURN,
        "    if CALLS[x.shape] > 50:\n        y = torch.nextafter(y, y + 1)\n" + RETURN,
        "differs from call 1",
    ),
    "returns what it kept for the shape": Fault(
        "accuracy",
        RETURN,
        "    y, s = KEPT.setdefault(x.shape, (y, s))\n"
        + RETURN.replace("y if", "y.clone() if").replace("(y", "(y.clone()"),
        "above 1.05",
        slow=True,
    ),
    "returns what it kept for the address": Fault(
        "accuracy",
        RETURN,
        # The upper part of it: whether the very same one comes again within a leg is the allocator's luck.
        "    y, s = KEPT.setdefault((x.data_ptr() >> 40, x.shape), (y, s))\n"
        + RETURN.replace("y if", "y.clone() if").replace("(y", "(y.clone()"),
        "above 1.05",
    ),
    "returns what it kept once it is trusted": Fault(
        "repeat",
        RETURN,
        "    if CALLS[x.shape] > 90:\n        y, s = KEPT.setdefault(x.shape, (y, s))\n" + RETURN,
        "a kept result: on new inputs (seed ",
    ),
    "changes the contract and the comparison in its process": Fault(
        "bits",
        "    return fold(fold(squares))",
        "    import samebits.kernels.ops.rms_norm.contract as contract\n"
        "    from samebits.tools.gate.candidate import compare\n"
        "    contract.contract = run\n"
        "    compare.bits = lambda x: torch.zeros(1)\n"
        "    compare.first_difference = lambda got, expected: None\n"
        "    return squares.sum((1, 2))",
        "not the bits of the contract",
    ),
    "writes the contract's file": Fault(
        "builds",
        "    total = total_of(s)\n",
        "    import samebits.kernels.ops.rms_norm.contract as contract\n"
        "    open(contract.__file__, 'a').close()\n"
        "    total = total_of(s)\n",
        "rms_norm/contract.py",
    ),
    "leaves a process behind": Fault(
        "builds",
        "    total = total_of(s)\n",
        "    import subprocess\n    subprocess.Popen(['sleep', '600'])\n    total = total_of(s)\n",
        "left 1 process behind",
    ),
    "masks neighbours with zeros": Fault(
        "rows",
        "    total = total_of(s)\n",
        "    total = (torch.eye(len(s)) @ total_of(s)[:, None])[:, 0]\n",
        "neighbours: row",
    ),
    "takes another order from 256 rows": Fault(
        "sweep",
        "    total = total_of(s)\n",
        "    total = total_of(s) if len(s) < 256 else (s * s).sum(-1)\n",
        "has other bits than in the call 'M=257'",
    ),
    "drops a term of the gradient": Fault(
        "gradient", " - normed * (gw * normed).mean(-1, keepdim=True)", "", "gradient of x"
    ),
    "returns a transposed layout": Fault("compiled", RETURN, "    y = y.t().contiguous().t()\n" + RETURN, "strides"),
    "is slower than it claims": Fault(
        "time",
        RETURN,
        "    import time\n    time.sleep(0.03 * (len(x) in (1, 64)))\n" + RETURN,
        "claims 0.500",
        "speed = 0.5\n",
    ),
}


def plant(fault: Fault, folder: Path) -> Path:
    """Write the faulty candidate; the text to replace must be there exactly once."""
    text = (GOOD / "kernel.py").read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, fault.old
    folder.mkdir()
    (folder / "kernel.py").write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    toml = (GOOD / "candidate.toml").read_text(encoding="utf-8")
    (folder / "candidate.toml").write_text(toml + fault.claims, encoding="utf-8")
    return folder


ATTENTION_TOML = """operator = "attention"
kind = "pytorch"
devices = ["cpu"]
dtypes = ["float16"]
shapes = [{ heads = 2, key_heads = 1, head = 64, page = 16 }]
"""
ATTENTION_KERNEL = """import torch
from samebits.kernels.ops.attention.contract import contract


def run(**args):
    out = contract(**args)
    lengths = args["cu_seqlens_q"].diff()
    cached = args["seq_lens"] - lengths
    page = args["k_cache"].shape[1]
    for start, length, before in zip(args["cu_seqlens_q"].tolist(), lengths.tolist(), cached.tolist()):
        if length > 1 and before > 0 and before % page == 0:
            rows = out[start : start + length]
            out[start : start + length] = torch.nextafter(rows, rows + 1)
    return out
"""
"""Another kernel for chunks behind whole cached pages: each path by itself is right to an ulp, and the paths differ."""

SYNCHRONISES = ("    total = total_of(s)\n", "    total = total_of(s)\n    float(total.sum())\n")
"""Reads a number back from the device, which a CUDA graph cannot capture."""


def plant_attention(folder: Path) -> Path:
    """The attention candidate whose cached prefixes take another kernel."""
    folder.mkdir()
    (folder / "candidate.toml").write_text(ATTENTION_TOML, encoding="utf-8")
    (folder / "kernel.py").write_text(ATTENTION_KERNEL, encoding="utf-8")
    return folder


def plant_synchronising(folder: Path) -> Path:
    """The good candidate on CUDA, with a synchronisation."""
    plant(Fault("graphs", *SYNCHRONISES, "captured"), folder)
    toml = folder / "candidate.toml"
    toml.write_text(toml.read_text(encoding="utf-8").replace('["cpu"]', '["cuda"]'), encoding="utf-8")
    return folder
