"""Router and experts. Legend: T token rows, E experts, k selected ones, H hidden, F expert width."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from samebits.tools.diff.causes.accumulate import exponential, fma, product
from samebits.tools.diff.causes.observation import Arithmetic, Observation, Option, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping


def router_settings(seen: Observation) -> tuple[Setting, ...]:
    """What two routers may do differently."""
    found = [
        Setting("order", "formula", (
            Option("softmax_first", "softmax over all experts, then the top k"),
            Option("topk_first", "the top k logits, then softmax over them", cause="order_static"),
        )),
        Setting("precision", "precision", (
            Option("f32", "logits widened to float32 first"),
            Option("dtype", "everything in the dtype of the logits"),
            Option("bf16", "logits rounded to bfloat16 first"),
            Option("bf16_softmax", "logits rounded to bfloat16, softmax in bfloat16"),
        )),
        Setting("renormalise", "formula", (
            Option("given", "renormalised as configured"), Option("other", "renormalised against the configuration"),
        )),
        Setting("weights", "cast", (
            Option("f32", "weights stay in float32"),
            Option("rounded", "weights rounded to bfloat16"),
            Option("rounded_before", "probabilities rounded to bfloat16 before the top k"),
        )),
        Setting("tie", "order_static", (
            Option("native", "ties as torch.topk breaks them"),
            Option("low", "ties to the lowest expert number"),
            Option("high", "ties to the highest expert number"),
        )),
        Setting("score", "formula", (Option("softmax", "softmax scores"), Option("sigmoid", "sigmoid scores"))),
    ]  # fmt: skip
    if seen.number("scale", 1.0) != 1.0:
        found.append(Setting("scale", "formula", (
            Option("given", "weights are scaled"), Option("none", "weights are not scaled"),
        )))  # fmt: skip
    return tuple(found)


def select(scores_TE: torch.Tensor, count: int, tie: str, *, ranked: bool = True) -> torch.Tensor:
    """Numbers of the top k, [T, k]; `ranked`: best first, else as torch.topk leaves them."""
    if tie == "native":
        return torch.topk(scores_TE, count, dim=-1, sorted=ranked).indices
    if tie == "low":
        return scores_TE.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    last = scores_TE.shape[-1] - 1
    return last - scores_TE.flip(-1).sort(dim=-1, descending=True, stable=True).indices[:, :count]


def routed(seen: Observation, pick: Mapping[str, str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and numbers of the selected experts, [T, k] each."""
    logits_TE, count = seen["logits"], int(seen.number("top_k", 1))
    how = pick["precision"]
    logits_TE = logits_TE.to(torch.bfloat16) if how.startswith("bf16") else logits_TE
    logits_TE = logits_TE.float() if how in ("f32", "bf16") else logits_TE
    renormalise = bool(seen.scalars.get("renormalise", True)) == (pick["renormalise"] == "given")
    if pick["order"] == "topk_first":
        index_Tk = select(logits_TE, count, pick["tie"], ranked=False)
        top_Tk = logits_TE.gather(-1, index_Tk)
        weight_Tk = torch.softmax(top_Tk, -1) if pick["score"] == "softmax" else torch.sigmoid(top_Tk)
    else:
        p_TE = torch.softmax(logits_TE, -1) if pick["score"] == "softmax" else torch.sigmoid(logits_TE)
        p_TE = p_TE.to(torch.bfloat16) if pick["weights"] == "rounded_before" else p_TE
        index_Tk = select(p_TE, count, pick["tie"])
        weight_Tk = p_TE.gather(-1, index_Tk)
        weight_Tk = weight_Tk.float() if pick["weights"] == "rounded_before" else weight_Tk
        if renormalise:
            weight_Tk = weight_Tk / weight_Tk.sum(-1, keepdim=True)
    weight_Tk = weight_Tk.to(torch.bfloat16) if pick["weights"] == "rounded" else weight_Tk
    if pick.get("scale", "none") == "given":
        weight_Tk = weight_Tk * seen.number("scale", 1.0)
    return weight_Tk, index_Tk


def router(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """Dense weights [T, E] in the output's dtype, zero where an expert is not selected."""
    weight_Tk, index_Tk = routed(seen, pick)
    return dense(weight_Tk.to(seen.rollout.dtype), index_Tk, seen["logits"].shape[-1])


def dense(weights_Tk: torch.Tensor, ids_Tk: torch.Tensor, experts: int) -> torch.Tensor:
    """Router output in the form the library compares: [T, E], zero where not selected; slot order does not matter."""
    zeros = torch.zeros(weights_Tk.shape[0], experts, dtype=weights_Tk.dtype, device=weights_Tk.device)
    return zeros.scatter(-1, ids_Tk.long(), weights_Tk)


def experts_settings(seen: Observation) -> tuple[Setting, ...]:
    """What two expert layers may do differently; with the logits as an input, their routers too."""
    routers = router_settings(seen) if seen.has("logits") else ()
    return (
        *routers,
        Setting("combine", "order_static", (
            Option("expert", "results added in ascending expert number"),
            Option("slot", "results added in the order of selection"),
            Option("descending", "results added in descending expert number"),
        )),
        Setting("sum", "cast", (
            Option("f32", "the sum over experts stays in float32"),
            Option("rounded", "the sum over experts is rounded after each add"),
            Option("fma", "each result is weighted and added by one fused multiply-add", cause="order_static"),
        )),
        Setting("result", "cast", (
            Option("rounded", "each expert's result is rounded, then weighted"),
            Option("f32", "each expert's result is weighted in float32"),
            Option("weighted_rounded", "each expert's result is rounded, weighted and rounded again"),
            Option("before", "the weight is applied to the input of the second product", cause="path"),
        )),
        Setting("hidden", "cast", (
            Option("rounded", "silu and its product with up are each rounded"),
            Option("once", "silu stays in float32, the product is rounded"),
            Option("last", "gate and up stay in float32, their product is rounded"),
            Option("f32", "gate, up and their product stay in float32"),
        )),
        Setting("exponent", "precision", (
            Option("exp", "silu by PyTorch's exponential"),
            Option("quintic", "silu by a polynomial of degree five for exp (exp_u20) and a reciprocal"),
        )),
        Setting("product", "order_static", (
            Option("native", "PyTorch's float32 products"),
            Option("dtype", "PyTorch's products in the activation dtype"),
            Option("ascending", "products: one chain of fused multiply-adds, ascending", known=True),
            Option("pairs", "products: pairs, odd before even (VDPBF16PS)", known=True),
            Option("tiles", "products: tiles of 32, even and odd chains (AMX)", known=True),
        )),
    )  # fmt: skip


def experts_kernels(seen: Observation) -> tuple[dict[str, str], ...]:
    """vLLM's CPU experts on machines without and with AMX, and transformers' grouped and plain loops."""
    if seen["x"].device.type != "cpu":
        return ()
    fused = {"combine": "slot", "sum": "fma", "result": "f32", "hidden": "last", "exponent": "quintic"}
    stock = {"result": "weighted_rounded"}
    ours = [fused | {"product": "ascending"}, fused | {"product": "tiles"}]
    # Written out, PyTorch's products do not depend on what this process may use of the CPU.
    theirs = [
        stock | {"product": way} | how
        for way in ("pairs", "tiles", "dtype")
        for how in ({}, {"combine": "slot"}, {"sum": "rounded"})
    ]
    if seen.has("logits"):
        late = {"order": "topk_first", "precision": "dtype"}
        ours = [late | pick for pick in ours]
        theirs = [{"weights": "rounded"} | pick for pick in theirs]
    return (*ours, *theirs)


def multiplied(x_TK: torch.Tensor, weight_NK: torch.Tensor, how: str) -> torch.Tensor:
    """x weight^T in float32, or rounded once where PyTorch multiplies in the activation dtype."""
    if how == "dtype":
        return F.linear(x_TK.to(weight_NK.dtype), weight_NK).float()
    if how == "native":
        return F.linear(x_TK.float(), weight_NK.float())
    return product(x_TK.float()[None], weight_NK.float().t()[None], how)[0]


def silu(gate: torch.Tensor, exponent: str) -> torch.Tensor:
    """float32."""
    return F.silu(gate) if exponent == "exp" else gate * (1 / (1 + exponential(-gate, exponent)))


def expert(
    x_TH: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weight_T1: torch.Tensor, pick: Mapping[str, str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result of one expert for the rows that chose it, float32 [T, H], and the weight it still has to get [T, 1]."""
    dtype, done_T1 = x_TH.dtype, torch.ones_like(weight_T1)
    gate, up = multiplied(x_TH, w13, pick["product"]).chunk(2, -1)
    if pick["hidden"] in ("rounded", "once"):
        gate, up = gate.to(dtype).float(), up.to(dtype).float()
    act = silu(gate, pick["exponent"])
    act = act.to(dtype).float() if pick["hidden"] == "rounded" else act
    hidden = act * up
    hidden = hidden if pick["hidden"] == "f32" else hidden.to(dtype).float()
    if pick["result"] == "before":
        return multiplied((hidden * weight_T1).to(dtype), w2, pick["product"]), done_T1
    y_TH = multiplied(hidden, w2, pick["product"])
    y_TH = y_TH if pick["result"] == "f32" else y_TH.to(dtype).float()
    if pick["result"] == "weighted_rounded":
        return (y_TH * weight_T1).to(dtype).float(), done_T1
    return y_TH, weight_T1


def experts(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """[T, H] in the activation dtype."""
    weights_Tk, ids_Tk = routed(seen, pick) if seen.has("logits") else (seen["weights"], seen["ids"])
    x_TH, ids_Tk, weights_Tk = seen["x"], ids_Tk.long(), weights_Tk.float()
    dtype, (rows, count) = x_TH.dtype, ids_Tk.shape
    part_TkH = torch.zeros(rows, count, x_TH.shape[1], device=x_TH.device)
    left_Tk1 = torch.ones(rows, count, 1, device=x_TH.device)
    for number in torch.unique(ids_Tk).tolist():
        row, slot = torch.where(ids_Tk == number)
        part_TkH[row, slot], left_Tk1[row, slot] = expert(
            x_TH[row], seen["w13"][number], seen["w2"][number], weights_Tk[row, slot, None], pick
        )
    left_TkH = left_Tk1.expand_as(part_TkH)
    if pick["combine"] != "slot":
        order = ids_Tk.argsort(-1, descending=pick["combine"] == "descending")[..., None].expand_as(part_TkH)
        part_TkH, left_TkH = part_TkH.gather(1, order), left_TkH.gather(1, order)
    total_TH = torch.zeros_like(part_TkH[:, 0])
    for slot_number in range(count):
        part_TH, left_TH = part_TkH[:, slot_number], left_TkH[:, slot_number]
        total_TH = fma(part_TH, left_TH, total_TH) if pick["sum"] == "fma" else total_TH + part_TH * left_TH
        total_TH = total_TH.to(dtype).float() if pick["sum"] == "rounded" else total_TH
    return total_TH.to(dtype)


ROUTER = Arithmetic("router", ("logits",), router_settings, router)
EXPERTS = Arithmetic("experts", ("x", "weights", "ids", "logits"), experts_settings, experts, experts_kernels)
