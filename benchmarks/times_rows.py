"""Rows of norm, activation, rotary and logprob for operators.py: against vLLM's own kernels, inputs cold in L2, bf16.

The alternative is the faster of what vLLM has: its custom operators (in place where they are so), for the norm and
rotary of query and key the three operators or its fused one, for the logprob the kernel of Model Runner V2 or the
log-softmax of the V1 runner. What torch.compile makes of the formulas is compared by `samebits build NAME`.

T: tokens, D: width, I: width of the activation, H: query heads, G: key heads, V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from timing import copies_for, interleaved_us

from samebits.kernels.ops.logprob.op import logprob
from samebits.kernels.ops.normed_rotary.op import normed_rotary
from samebits.kernels.ops.rms_norm.op import rms_norm
from samebits.kernels.ops.rotary.op import rotary
from samebits.kernels.ops.silu_mul.op import silu_mul

Call = Callable[[], Any]
TOKENS = (1, 8, 64, 256, 2048)
EPS = 1e-6
POSITIONS = 4096
SAME = 0.02
"""Results in bf16 of two arms are nearer than this part of the largest value."""


@dataclass(slots=True, frozen=True)
class Arms:
    """One input of one operator.

    Attributes:
        ours: returns what vLLM's would.
        theirs: by name; what is None is not in this vLLM, or not on this device.
        moved: bytes that must be read and written at least.
    """

    ours: Call
    theirs: dict[str, Call | None]
    moved: int


def known(name: str) -> bool:
    """Whether this build of vLLM has the custom operator."""
    return hasattr(torch.ops._C, name)


def normal(*size: int, device: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Standard normal values."""
    return torch.randn(*size, device=device).to(dtype)


def of_norm(width: int, residual: bool, tokens: int, device: str) -> Arms:
    """RMSNorm of [T, D], with or without the sum with a residual before it."""
    x_TD, weight_D = normal(tokens, width, device=device), normal(width, device=device)
    moved = 2 * width * (tokens * (4 if residual else 2) + 1)
    if residual:
        r_TD = normal(tokens, width, device=device)
        own_TD, own_r_TD = x_TD.clone(), r_TD.clone()

        def added() -> Any:
            torch.ops._C.fused_add_rms_norm(own_TD, own_r_TD, weight_D, EPS)
            return own_TD, own_r_TD

        return Arms(partial(rms_norm, x_TD, weight_D, EPS, r_TD), {"fused_add_rms_norm": added}, moved)

    def plain() -> Any:
        y_TD = torch.empty_like(x_TD)
        torch.ops._C.rms_norm(y_TD, x_TD, weight_D, EPS)
        return y_TD

    return Arms(partial(rms_norm, x_TD, weight_D, EPS), {"rms_norm": plain}, moved)


def of_silu(width: int, tokens: int, device: str) -> Arms:
    """silu(gate) * up of a merged [T, 2 I]."""
    x_TI2 = normal(tokens, 2 * width, device=device)

    def theirs() -> Any:
        y_TI = x_TI2.new_empty(tokens, width)
        torch.ops._C.silu_and_mul(y_TI, x_TI2)
        return y_TI

    return Arms(partial(silu_mul, *x_TI2.chunk(2, -1)), {"silu_and_mul": theirs}, 6 * tokens * width)


def of_rotary(heads: int, keys: int, size: int, normed: bool, tokens: int, device: str) -> Arms:
    """Rotary of query and key within a merged qkv, with or without a norm of each head before it."""
    qkv = normal(tokens, (heads + 2 * keys) * size, device=device)
    own = qkv.clone()
    cuts = [heads * size, keys * size, keys * size]
    q_THD, k_TGD, _ = (part.view(tokens, -1, size) for part in qkv.split(cuts, -1))
    own_q, own_k, _ = own.split(cuts, -1)
    at_T = torch.randint(POSITIONS, (tokens,), device=device)
    angle = torch.arange(POSITIONS)[:, None] * 1e6 ** (-torch.arange(0, size, 2) / size)
    cache = torch.cat([angle.cos(), angle.sin()], -1).float().to(device)
    # vLLM keeps its table in the dtype of the model, samebits in float32.
    rounded = cache.bfloat16()
    moved = 4 * tokens * (heads + keys) * size

    def turn(q: torch.Tensor, k: torch.Tensor) -> Any:
        torch.ops._C.rotary_embedding(at_T, q, k, size, rounded, True)
        return q.view(tokens, heads, size), k.view(tokens, keys, size)

    if not normed:
        return Arms(
            partial(rotary, q_THD, k_TGD, at_T, cache), {"rotary_embedding": partial(turn, own_q, own_k)}, moved
        )
    q_weight, k_weight = normal(size, device=device), normal(size, device=device)
    # On CUDA the norm takes the view, as vLLM's model hands it over; the CPU build reads it as if it were dense.
    views = (q_THD, k_TGD) if device == "cuda" else (q_THD.contiguous(), k_TGD.contiguous())

    def three() -> Any:
        q, k = torch.empty(q_THD.shape, **like(qkv)), torch.empty(k_TGD.shape, **like(qkv))
        torch.ops._C.rms_norm(q, views[0], q_weight, EPS)
        torch.ops._C.rms_norm(k, views[1], k_weight, EPS)
        return turn(q.view(tokens, -1), k.view(tokens, -1))

    def fused() -> Any:
        torch.ops._C.fused_qk_norm_rope(own, heads, keys, keys, size, EPS, q_weight, k_weight, rounded, True, at_T, -1)
        return own_q.view(tokens, heads, size), own_k.view(tokens, keys, size)

    return Arms(
        partial(normed_rotary, q_THD, k_TGD, q_weight, k_weight, EPS, at_T, cache),
        {"norms and rotary_embedding": three, "fused_qk_norm_rope": fused if known("fused_qk_norm_rope") else None},
        moved,
    )


def like(x: torch.Tensor) -> dict[str, Any]:
    """Dtype and device."""
    return {"dtype": x.dtype, "device": x.device}


def of_logprob(vocabulary: int, tokens: int, device: str) -> Arms:
    """Logprob of one token per row of float32 logits [T, V]."""
    logits_TV = 4 * normal(tokens, vocabulary, device=device, dtype=torch.float32)
    ids_T = torch.randint(vocabulary, (tokens,), device=device)

    def softmax() -> Any:
        return logits_TV.log_softmax(-1, dtype=torch.float32).gather(-1, ids_T[:, None])[:, 0]

    theirs: dict[str, Call | None] = {"log_softmax and gather": softmax, "Model Runner V2": None}
    if device == "cuda":
        from vllm.v1.worker.gpu.sample.logprob import compute_token_logprobs

        theirs["Model Runner V2"] = lambda: compute_token_logprobs(logits_TV, ids_T[:, None])[:, 0]
    return Arms(partial(logprob, logits_TV, ids_T), theirs, 4 * tokens * vocabulary)


CASES: dict[str, tuple[str, Callable[[int, str], Arms]]] = {
    "2048 residual": ("rms_norm", partial(of_norm, 2048, True)),
    "4096 residual": ("rms_norm", partial(of_norm, 4096, True)),
    "4096": ("rms_norm", partial(of_norm, 4096, False)),
    "128": ("rms_norm", partial(of_norm, 128, False)),
    "6144": ("silu_mul", partial(of_silu, 6144)),
    "12288": ("silu_mul", partial(of_silu, 12288)),
    "16 + 8 heads of 128": ("rotary", partial(of_rotary, 16, 8, 128, False)),
    "32 + 8 heads of 128": ("rotary", partial(of_rotary, 32, 8, 128, False)),
    "16 + 8 heads of 128, normed": ("normed_rotary", partial(of_rotary, 16, 8, 128, True)),
    "32 + 8 heads of 128, normed": ("normed_rotary", partial(of_rotary, 32, 8, 128, True)),
    "151936": ("logprob", partial(of_logprob, 151936)),
}
"""By name: the operator, and its arms for a number of tokens and a device."""
MOST_LOGPROBS = 256
"""As many sequences as a step of the engine samples for."""


def load_vllm() -> bool:
    """Register vLLM's custom operators; False where vLLM is not installed."""
    try:
        from vllm.platforms import current_platform
    except ImportError:
        return False
    current_platform.import_kernels()
    return known("rms_norm")


def farthest(ours: Any, theirs: Any) -> float:
    """The largest distance of two results, as a part of the largest value."""
    pairs = zip(*((x if isinstance(x, tuple) else (x,)) for x in (ours, theirs)), strict=True)
    return max(float((a.float() - b.float()).abs().max() / b.float().abs().max()) for a, b in pairs)


def require_same(arms: Arms) -> None:
    """Run every arm once.

    Raises:
        RuntimeError: one does not compute the same: its time would say nothing.
    """
    ours = arms.ours()
    for name, call in arms.theirs.items():
        if call is not None and not (far := farthest(ours, call())) < SAME:
            raise RuntimeError(f"{name}: its result is {far:.3g} of the largest value away from ours")


def measure(make: Callable[[int, str], Arms], tokens: int, has_vllm: bool) -> tuple[dict[str, float], int]:
    """Microseconds per arm, and the bytes that one call must move."""
    first = make(tokens, "cuda")
    if has_vllm:
        require_same(make(tokens, "cuda"))
    copies = [first, *(make(tokens, "cuda") for _ in range(copies_for(first.moved) - 1))]
    arms: dict[str, list[Call]] = {"ours": [copy.ours for copy in copies]}
    for name, call in first.theirs.items() if has_vllm else ():
        if call is not None:
            arms[name] = [copy.theirs[name] for copy in copies]  # type: ignore[misc]
    return interleaved_us(arms, rounds=3, replays=5), first.moved


def rows(per_us: tuple[float, float]) -> Iterator[dict[str, Any]]:
    """One row per case and number of tokens. Without vLLM there is no ratio, and the rows say so by leaving it out."""
    has_vllm = load_vllm()
    for case, (operator, make) in CASES.items():
        for tokens in TOKENS:
            if operator == "logprob" and tokens > MOST_LOGPROBS:
                continue
            with torch.inference_mode():
                times, moved = measure(make, tokens, has_vllm)
            ours = times.pop("ours")
            row: dict[str, Any] = {"op": operator, "case": case, "M": tokens, "us": ours}
            if times:
                best = min(times, key=times.__getitem__)
                row |= {"alternative": best, "alternative_us": times[best], "ratio": times[best] / ours}
            yield row | {"floor_ratio": moved / per_us[0] / ours}
        torch.cuda.empty_cache()
