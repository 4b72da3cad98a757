"""Operators a side may have run, each as one self-contained function: repro.py gets its source as it stands here.

Every function takes the inputs by role (tools/diff/causes/observation.py) and the scalars, and imports what it needs
itself.
Which one a side really ran is not believed: the one that gives the captured bits is used.

Legend: T token rows, H hidden, K inputs and N outputs of a linear, Q query heads, G key heads, S keys, D head dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Operator = Callable[[Mapping[str, torch.Tensor], Mapping[str, Any]], torch.Tensor]


def vllm_norm(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """vLLM's compiled RMS norm kernels."""
    import importlib

    importlib.import_module("vllm._custom_ops")
    x_TH, weight_H, eps = inputs["x"].clone(), inputs["weight"], float(scalars.get("eps", 1e-6))
    if "residual" in inputs:
        torch.ops._C.fused_add_rms_norm(x_TH, inputs["residual"].clone(), weight_H, eps)
        return x_TH
    out_TH = torch.empty_like(x_TH)
    torch.ops._C.rms_norm(out_TH, x_TH, weight_H, eps)
    return out_TH


def vllm_plain_norm(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """vLLM's RMS norm where it is PyTorch code: the residual sum stays in float32."""
    x_TH, weight_H = inputs["x"].float(), inputs["weight"]
    if "residual" in inputs:
        x_TH = x_TH + inputs["residual"].float()
    variance_T1 = x_TH.pow(2).mean(dim=-1, keepdim=True)
    x_TH = x_TH * torch.rsqrt(variance_T1 + float(scalars.get("eps", 1e-6)))
    return (x_TH.to(weight_H.dtype) * weight_H).to(inputs["x"].dtype)


def torch_norm(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """RMS norm as in transformers: the residual sum is rounded first."""
    x_TH, weight_H = inputs["x"], inputs["weight"]
    if "residual" in inputs:
        x_TH = inputs["residual"] + x_TH
    wide_TH = x_TH.to(torch.float32)
    variance_T1 = wide_TH.pow(2).mean(-1, keepdim=True)
    wide_TH = wide_TH * torch.rsqrt(variance_T1 + float(scalars.get("eps", 1e-6)))
    return weight_H * wide_TH.to(x_TH.dtype)


def vllm_rotary(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """vLLM's rotary kernel, halves rotated, table in the activation dtype."""
    import importlib

    importlib.import_module("vllm._custom_ops")
    x_TQD, position_T = inputs["x"].contiguous().clone(), inputs["positions"].long()
    inv_freq, at = inputs["inv_freq"], torch.arange(int(position_T.max()) + 1, device=x_TQD.device).float()
    if x_TQD.is_cuda:  # vLLM computes the table, and the frequencies too, where the model is
        size = x_TQD.shape[-1]
        exponent = torch.arange(0, size, 2, dtype=torch.float, device=x_TQD.device) / size
        inv_freq = 1.0 / float(scalars["base"]) ** exponent
    angle = at[:, None] * inv_freq
    table = torch.cat([angle.cos(), angle.sin()], -1).to(x_TQD.dtype)
    flat = x_TQD.view(x_TQD.shape[0], -1)
    torch.ops._C.rotary_embedding(position_T, flat, None, x_TQD.shape[-1], table, True)
    return x_TQD


def torch_rotary(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """Rotary embedding as in transformers, in the activation dtype."""
    x_TQD = inputs["x"]
    angle = inputs["positions"].float()[:, None] * inputs["inv_freq"]
    cos, sin = (torch.cat([f(angle), f(angle)], -1)[:, None].to(x_TQD.dtype) for f in (torch.cos, torch.sin))
    a, b = x_TQD.chunk(2, -1)
    return (x_TQD * cos) + (torch.cat([-b, a], -1) * sin)


def vllm_cpu_linear(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """vLLM's linear on CPU: oneDNN with packed weights."""
    import importlib

    ops = importlib.import_module("vllm._custom_ops")
    handle = ops.create_onednn_mm(inputs["weight"].t(), 32)
    out: torch.Tensor = ops.onednn_mm(handle, inputs["x"], inputs.get("bias"))
    return out


def torch_linear(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """torch.nn.functional.linear, over all rows or over groups of them; over a merged weight, its own columns."""
    x_TK, weight_NK, bias_N, linear = inputs["x"], inputs["weight"], inputs.get("bias"), torch.nn.functional.linear
    if scalars.get("weight") == "merged":
        if bias_N is not None:
            raise ValueError("a merged weight with a bias")
        weight_NK = inputs["merged"]
    if not scalars.get("rows"):
        out_TN = linear(x_TK, weight_NK, bias_N)
    else:
        by = {"by sequence": "sequence", "by pass": "pass"}.get(str(scalars["rows"]))
        number_T = inputs[by] if by else torch.arange(len(x_TK), device=x_TK.device)
        groups = [torch.nonzero(number_T == number)[:, 0] for number in torch.unique(number_T)]
        parts_TN = torch.cat([linear(x_TK[rows], weight_NK, bias_N) for rows in groups])
        out_TN = parts_TN[torch.argsort(torch.cat(groups))]
    return out_TN[:, inputs["columns"]] if scalars.get("weight") == "merged" else out_TN


def vllm_cpu_attention(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """vLLM's paged attention on CPU: one sequence, the queries are its last rows."""
    import importlib

    ops = importlib.import_module("vllm._custom_ops")
    q, k, v = (inputs[name].contiguous() for name in ("q", "k", "v"))
    (rows, heads, dim), (keys, groups, _) = q.shape, k.shape
    block, isa = 128, str(scalars.get("isa", "vec"))
    if isa == "amx" and not torch.cpu._init_amx():  # asks the kernel for the tile registers; without it: SIGILL
        raise RuntimeError("this machine has no AMX")
    blocks = -(-keys // block)
    pool = torch.zeros(blocks, groups, block, 2 * dim, dtype=q.dtype).view(blocks, groups, 2 * block, dim)
    key_cache, value_cache = pool.chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(k, v, key_cache, value_cache, torch.arange(keys), isa)
    # In a long prefill the bits follow the rows of the call; one by one they are those of decode steps and of pieces.
    ends = range(1, rows + 1) if scalars.get("rows") == "one by one" else [rows]
    start = torch.tensor([0, *ends], dtype=torch.int32)
    lengths = start[1:] + (keys - rows)
    window, split = int(scalars.get("window", 0)) or -1, bool(scalars.get("kv_split", False))
    plan = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=len(lengths), num_heads=heads, num_kv_heads=groups, head_dim=dim, seq_lens=lengths, dtype=q.dtype,
        query_start_loc=start, causal=True, sliding_window_size=window, isa=isa, enable_kv_split=split,
    )  # fmt: skip
    out = torch.empty_like(q)
    ops.cpu_attention_with_kv_cache(
        query=q, key_cache=key_cache, value_cache=value_cache, output=out, query_start_loc=start, seq_lens=lengths,
        scale=float(scalars["scale"]), causal=True, alibi_slopes=None, sliding_window=window,
        block_table=torch.arange(blocks, dtype=torch.int32).repeat(len(lengths), 1), s_aux=inputs.get("sink"),
        softcap=float(scalars.get("softcap", 0)), scheduler_metadata=plan,
    )  # fmt: skip
    return out


def vllm_flash_attention(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """vLLM's FlashAttention over paged keys and values: one sequence, the queries are its last rows."""
    import importlib

    flash = importlib.import_module("vllm.vllm_flash_attn")
    q, k, v = (inputs[name].contiguous() for name in ("q", "k", "v"))
    (rows, _, dim), (keys, groups, _) = q.shape, k.shape
    page, window = int(scalars.get("page", 16)), int(scalars.get("window", 0))
    pages = -(-keys // page)
    cache = torch.zeros(pages, 2, page, groups, dim, dtype=q.dtype, device=q.device)
    for place, tensor in enumerate((k, v)):
        cache[:, place] = torch.nn.functional.pad(tensor, (0, 0, 0, 0, 0, pages * page - keys)).unflatten(0, (-1, page))
    cuts = [0, rows]
    if scalars.get("rows") == "by pass":
        pass_T = inputs["pass"]
        cuts = [0, *(torch.nonzero(pass_T[1:] != pass_T[:-1])[:, 0] + 1).tolist(), rows]
    parts = []
    for number in range(1, len(cuts)):
        first, end = cuts[number - 1], cuts[number]
        seen = keys - rows + end
        parts.append(flash.flash_attn_varlen_func(
            q=q[first:end], k=cache[:, 0], v=cache[:, 1], max_seqlen_q=end - first, max_seqlen_k=seen,
            cu_seqlens_q=torch.tensor([0, end - first], dtype=torch.int32, device=q.device),
            seqused_k=torch.tensor([seen], dtype=torch.int32, device=q.device),
            block_table=torch.arange(pages, dtype=torch.int32, device=q.device)[None],
            softmax_scale=float(scalars["scale"]), causal=True, window_size=[window - 1, 0] if window else None,
            softcap=float(scalars.get("softcap", 0)), fa_version=int(scalars.get("fa_version", 3)),
        ))  # fmt: skip
    return torch.cat(parts)


def torch_sdpa(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """scaled_dot_product_attention over one sequence; the queries are its last rows."""
    q, k, v = (inputs[name].transpose(0, 1)[None] for name in ("q", "k", "v"))
    repeat = q.shape[1] // k.shape[1]
    if scalars.get("gqa") != "kernel":
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    rows, keys = q.shape[2], k.shape[2]
    mask, window = None, int(scalars.get("window", 0))
    if rows != keys or window or scalars.get("mask") == "explicit":
        at, key = torch.arange(keys - rows, keys, device=q.device)[:, None], torch.arange(keys, device=q.device)
        mask = (key <= at) & (key > at - window) if window else key <= at
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None and rows > 1, scale=float(scalars["scale"]),
        enable_gqa=scalars.get("gqa") == "kernel",
    )  # fmt: skip
    return out[0].transpose(0, 1)


def torch_eager_attention(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """Eager attention as in transformers: scores in the activation dtype, softmax in float32."""
    q, k, v = (inputs[name].transpose(0, 1)[None] for name in ("q", "k", "v"))
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    s = torch.matmul(q, k.transpose(2, 3)) * float(scalars["scale"])
    at = torch.arange(k.shape[2] - q.shape[2], k.shape[2], device=q.device)[:, None]
    hidden = torch.arange(k.shape[2], device=q.device) > at
    s = s + torch.zeros_like(hidden, dtype=s.dtype).masked_fill(hidden, torch.finfo(s.dtype).min)
    p = torch.nn.functional.softmax(s, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(p, v)[0].transpose(0, 1)


def vllm_silu(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """vLLM's silu-and-multiply kernel."""
    import importlib

    importlib.import_module("vllm._custom_ops")
    out = torch.empty_like(inputs["gate"])
    torch.ops._C.silu_and_mul(out, torch.cat([inputs["gate"], inputs["up"]], -1))
    return out


def torch_silu(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """silu(gate) * up."""
    y = torch.nn.functional.silu(inputs["gate"])
    return y * inputs["up"] if "up" in inputs else y


def torch_logsumexp(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """logit - logsumexp in float32, as TRL and verl do."""
    logits_TV = inputs["logits"][:, : int(scalars.get("vocabulary", inputs["logits"].shape[1]))].float()
    temperature = float(scalars.get("temperature", 1.0))
    logits_TV = logits_TV / temperature if temperature != 1.0 else logits_TV
    own_T = logits_TV.gather(1, inputs["token"].long()[:, None])[:, 0]
    return own_T - torch.logsumexp(logits_TV, dim=-1)


def torch_log_softmax(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """log_softmax in float32, as vLLM's sampler does."""
    logits_TV = inputs["logits"][:, : int(scalars.get("vocabulary", inputs["logits"].shape[1]))].float()
    temperature = float(scalars.get("temperature", 1.0))
    logits_TV = logits_TV / temperature if temperature != 1.0 else logits_TV
    return logits_TV.log_softmax(-1).gather(1, inputs["token"].long()[:, None])[:, 0]


def vllm_token_logprobs(inputs: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> torch.Tensor:
    """The logprob kernel of vLLM's Model Runner V2."""
    import importlib

    step = importlib.import_module("vllm.v1.worker.gpu.sample.logprob")
    logits_TV = inputs["logits"][:, : int(scalars.get("vocabulary", inputs["logits"].shape[1]))].float()
    temperature = float(scalars.get("temperature", 1.0))
    logits_TV = logits_TV / temperature if temperature != 1.0 else logits_TV
    out: torch.Tensor = step.compute_token_logprobs(logits_TV.contiguous(), inputs["token"].long()[:, None])
    return out[:, 0]


OPERATORS: dict[str, tuple[tuple[Operator, dict[str, Any]], ...]] = {
    "norm": ((torch_norm, {}), (vllm_plain_norm, {}), (vllm_norm, {})),
    "rotary": ((torch_rotary, {}), (vllm_rotary, {})),
    "linear": (
        (torch_linear, {}), (vllm_cpu_linear, {}), (torch_linear, {"rows": "by pass"}),
        (torch_linear, {"weight": "merged"}), (torch_linear, {"rows": "by pass", "weight": "merged"}),
        (torch_linear, {"rows": "by sequence"}), (torch_linear, {"rows": "one by one"}),
    ),
    "attention": (
        (torch_sdpa, {}), (torch_sdpa, {"gqa": "kernel"}), (torch_sdpa, {"mask": "explicit"}),
        (torch_sdpa, {"gqa": "kernel", "mask": "explicit"}), (torch_eager_attention, {}),
        (vllm_cpu_attention, {"isa": "vec"}), (vllm_cpu_attention, {"isa": "amx"}),
        (vllm_cpu_attention, {"isa": "vec", "kv_split": True}), (vllm_cpu_attention, {"isa": "vec16"}),
        (vllm_cpu_attention, {"isa": "vec", "rows": "one by one"}),
        (vllm_cpu_attention, {"isa": "amx", "rows": "one by one"}),
        (vllm_cpu_attention, {"isa": "vec16", "rows": "one by one"}),
        (vllm_flash_attention, {"rows": "by pass"}), (vllm_flash_attention, {}),
        (vllm_flash_attention, {"rows": "by pass", "fa_version": 2}), (vllm_flash_attention, {"fa_version": 2}),
    ),
    "activation": ((torch_silu, {}), (vllm_silu, {})),
    "logprob": ((torch_logsumexp, {}), (torch_log_softmax, {}), (vllm_token_logprobs, {})),
}  # fmt: skip
"""By kind, with the scalars of each variant; tried in this order."""
