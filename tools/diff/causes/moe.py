"""Router and experts. Legend: T token rows, E experts, k selected ones, H hidden, F expert width."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

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


def select(scores_TE: torch.Tensor, count: int, tie: str) -> torch.Tensor:
    """Numbers of the top k, [T, k]."""
    if tie == "native":
        return torch.topk(scores_TE, count, dim=-1).indices
    if tie == "low":
        return scores_TE.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    last = scores_TE.shape[-1] - 1
    return last - scores_TE.flip(-1).sort(dim=-1, descending=True, stable=True).indices[:, :count]


def router(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """Dense weights [T, E] in the output's dtype, zero where an expert is not selected."""
    logits_TE, count = seen["logits"], int(seen.number("top_k", 1))
    how = pick["precision"]
    logits_TE = logits_TE.to(torch.bfloat16) if how.startswith("bf16") else logits_TE
    logits_TE = logits_TE.float() if how in ("f32", "bf16") else logits_TE
    renormalise = bool(seen.scalars.get("renormalise", True)) == (pick["renormalise"] == "given")
    if pick["order"] == "topk_first":
        index_Tk = select(logits_TE, count, pick["tie"])
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
    out = seen.rollout.dtype
    return torch.zeros(logits_TE.shape, dtype=out, device=logits_TE.device).scatter(-1, index_Tk, weight_Tk.to(out))


def dense(weights_Tk: torch.Tensor, ids_Tk: torch.Tensor, experts: int) -> torch.Tensor:
    """Router output in the form the library compares: [T, E], zero where not selected; slot order does not matter."""
    zeros = torch.zeros(weights_Tk.shape[0], experts, dtype=weights_Tk.dtype, device=weights_Tk.device)
    return zeros.scatter(-1, ids_Tk.long(), weights_Tk)


def experts_settings(seen: Observation) -> tuple[Setting, ...]:
    """What two expert layers may do differently."""
    return (
        Setting("combine", "order_static", (
            Option("expert", "results added in ascending expert number"),
            Option("slot", "results added in the order of selection"),
            Option("descending", "results added in descending expert number"),
        )),
        Setting("sum", "cast", (
            Option("f32", "the sum over experts stays in float32"),
            Option("rounded", "the sum over experts is rounded after each add"),
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
            Option("f32", "gate, up and their product stay in float32"),
        )),
    )  # fmt: skip


def expert(
    x_TH: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weight_T1: torch.Tensor, pick: Mapping[str, str]
) -> torch.Tensor:
    """Weighted result of one expert for the rows that chose it, float32 [T, H]."""
    dtype = x_TH.dtype
    gate, up = F.linear(x_TH.float(), w13.float()).chunk(2, -1)
    if pick["hidden"] != "f32":
        gate, up = gate.to(dtype).float(), up.to(dtype).float()
    act = F.silu(gate)
    act = act.to(dtype).float() if pick["hidden"] == "rounded" else act
    hidden = act * up
    hidden = hidden if pick["hidden"] == "f32" else hidden.to(dtype).float()
    if pick["result"] == "before":
        return F.linear((hidden * weight_T1).to(dtype).float(), w2.float())
    y_TH = F.linear(hidden, w2.float())
    y_TH = y_TH if pick["result"] == "f32" else y_TH.to(dtype).float()
    y_TH = y_TH * weight_T1
    return y_TH.to(dtype).float() if pick["result"] == "weighted_rounded" else y_TH


def experts(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """[T, H] in the activation dtype."""
    x_TH, ids_Tk, weights_Tk = seen["x"], seen["ids"].long(), seen["weights"].float()
    dtype, (rows, count) = x_TH.dtype, ids_Tk.shape
    part_TkH = torch.zeros(rows, count, x_TH.shape[1], device=x_TH.device)
    for number in torch.unique(ids_Tk).tolist():
        row, slot = torch.where(ids_Tk == number)
        part_TkH[row, slot] = expert(
            x_TH[row], seen["w13"][number], seen["w2"][number], weights_Tk[row, slot, None], pick
        )
    if pick["combine"] != "slot":
        order = ids_Tk.argsort(-1, descending=pick["combine"] == "descending")
        part_TkH = part_TkH.gather(1, order[..., None].expand_as(part_TkH))
    total_TH = part_TkH[:, 0]
    total_TH = total_TH.to(dtype).float() if pick["sum"] == "rounded" else total_TH
    for slot_number in range(1, count):
        total_TH = total_TH + part_TkH[:, slot_number]
        total_TH = total_TH.to(dtype).float() if pick["sum"] == "rounded" else total_TH
    return total_TH.to(dtype)


ROUTER = Arithmetic("router", ("logits",), router_settings, router)
EXPERTS = Arithmetic("experts", ("x", "weights", "ids"), experts_settings, experts)
