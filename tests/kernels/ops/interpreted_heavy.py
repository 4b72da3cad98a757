"""Run by the tests of linear and attention with TRITON_INTERPRET=1: kernels against contracts, a JSON line each."""

from __future__ import annotations

import json
import sys
import warnings

import torch
from interpreted_segments import linear_segments

from samebits.kernels.ops.attention import dispatch as attention
from samebits.kernels.ops.attention import inputs as attention_inputs
from samebits.kernels.ops.attention.contract import contract as attention_contract
from samebits.kernels.ops.attention_varlen import dispatch as varlen
from samebits.kernels.ops.attention_varlen import inputs as varlen_inputs
from samebits.kernels.ops.attention_varlen.contract import contract as varlen_contract
from samebits.kernels.ops.attention_varlen.contract import contract_backward
from samebits.kernels.ops.attention_varlen.triton import backward
from samebits.kernels.ops.linear import inputs as linear_inputs
from samebits.kernels.ops.linear.contract import contract as linear_contract
from samebits.kernels.ops.linear.triton import Config, chain

CPU = torch.device("cpu")
CONFIGS = (Config(16, 16, 64, 2, 2), Config(8, 32, 32, 2, 3, True), Config(64, 16, 128, 4, 2))
Found = dict[str, object]


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    return int((a.contiguous().view(torch.uint8) != b.contiguous().view(torch.uint8)).sum())


def linear() -> Found:
    compared = wrong = planted = 0
    for dtype in (torch.float16, torch.float32):
        for shape in linear_inputs.SMALL_SHAPES:
            for case in linear_inputs.cases(shape, dtype, CPU, True):
                x, weight, bias = case.args["x"], case.args["weight"], case.args["bias"]
                expected = linear_contract(x, weight, bias)
                for config in CONFIGS if dtype == torch.float16 else CONFIGS[:1]:
                    got = chain(x.reshape(-1, x.shape[-1]), weight, bias, config).reshape(expected.shape)
                    compared += got.numel()
                    wrong += differing(got, expected)
                if case.name == "7 rows":  # a kernel that forgets the last K must be seen
                    cut = weight.clone()
                    cut[:, -1] = 0
                    planted += differing(chain(x, cut, bias, CONFIGS[0]), expected)
    return {"check": "linear", "compared": compared, "wrong": wrong, "planted": planted}


def paged() -> Found:
    compared = wrong = planted = 0
    for shape in attention_inputs.SMALL_SHAPES:
        for case in attention_inputs.cases(shape, torch.float16, CPU, True):
            a = case.args
            expected = attention_contract(**a)
            outs = [attention.run(**a)]
            where = (a["q"], a["k_cache"], a["v_cache"], a["block_table"], a["cu_seqlens_q"], a["seq_lens"])
            group = shape["heads"] // shape["key_heads"]
            if a["max_query_len"] * group <= attention.ROWS and shape["page"] == 16:
                split, alone = torch.zeros_like(expected), torch.zeros_like(expected)
                attention.decode(*where, a["max_query_len"], a["max_seq_len"], a["scale"], split, splits=3)
                attention.prefill(*where, a["scale"], alone, leave=0)
                outs += [split, alone]
            compared += sum(out.numel() for out in outs)
            wrong += sum(differing(out, expected) for out in outs)
            shifted = {**a, "seq_lens": a["seq_lens"] - (a["seq_lens"] > a["max_query_len"]).int()}
            planted += differing(attention_contract(**shifted), expected)
    return {"check": "attention", "compared": compared, "wrong": wrong, "planted": planted}


def whole_sequences() -> Found:
    compared = wrong = 0
    for case in varlen_inputs.cases(varlen_inputs.SMALL_SHAPES[0], torch.float16, CPU, True):
        expected = varlen_contract(**case.args)
        compared += expected.numel()
        wrong += differing(varlen.run(**case.args), expected)
    args = varlen_inputs.draw(varlen_inputs.SMALL_SHAPES[0], 90, torch.float32, CPU, 3, False)
    grad = torch.randn(args["q"].shape, generator=torch.Generator().manual_seed(4))
    fast = backward(grad, args["q"], args["k"], args["v"], args["cu_seqlens"], args["scale"])
    plain = contract_backward(grad, **args)
    worst = max(float((f - p).abs().max() / p.abs().max()) for f, p in zip(fast, plain, strict=True))
    return {"check": "attention_varlen", "compared": compared, "wrong": wrong, "backward": worst}


CHECKS = {"linear": linear, "linear_segments": linear_segments, "attention": paged, "attention_varlen": whole_sequences}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in sys.argv[1:]:
        print(json.dumps(CHECKS[name]()), flush=True)
