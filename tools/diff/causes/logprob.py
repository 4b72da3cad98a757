"""Logprob of a token from logits. Legend: T token rows, V vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from samebits.tools.diff.causes.observation import Arithmetic, Observation, Option, Setting
from samebits.tools.diff.causes.together import in_groups

if TYPE_CHECKING:
    from collections.abc import Mapping

CHUNKS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


def settings(seen: Observation) -> tuple[Setting, ...]:
    """What two logprob steps may do differently."""
    size = seen["logits"].shape[-1]
    form = [
        Option("log_softmax", "log_softmax in float32"),
        Option("logsumexp", "logit minus logsumexp"),
        Option("log_of_softmax", "log of softmax"),
        Option("shifted", "logit minus maximum, minus log of the sum of exponentials"),
    ]
    form += [
        Option(f"chunks:{n}", f"logit minus log-sum-exp over vocabulary chunks of {n}") for n in CHUNKS if n < size
    ]
    form.append(Option("float64", "log_softmax in float64", cause="precision"))
    found = [
        Setting("form", "order_static", tuple(form)),
        Setting("logits", "cast", (
            Option("given", "logits as given"), Option("bf16", "logits rounded to bfloat16 first"),
        )),
        Setting("inner", "precision", (
            Option("f32", "in float32"), Option("dtype", "in the dtype of the logits"),
            Option("bf16", "log_softmax in bfloat16"),
        )),
    ]  # fmt: skip
    if seen.number("temperature", 1.0) != 1.0:
        found.append(Setting("temperature", "cast", (
            Option("divide", "logits divided by the temperature in float32"),
            Option("dtype", "logits divided by the temperature in their own dtype"),
            Option("multiply", "logits multiplied by the inverse temperature"),
            Option("none", "temperature not applied", cause="data"),
            Option("after", "logprob divided by the temperature", cause="data"),
        )))  # fmt: skip
    if seen["logits"].device.type != "cpu":
        found += together(seen)
    true_size = int(seen.number("vocabulary", size))
    if true_size < size:
        found.append(Setting("vocabulary", "formula", (
            Option("true", "the true vocabulary"), Option("padded", "padded lanes counted in the sum"),
        )))  # fmt: skip
    return tuple(found)


GROUPS = {"sequences": "sequence", "passes": "pass"}
"""Input by which the rows go through the step in groups."""


def together(seen: Observation) -> list[Setting]:
    """Which rows run together: a GPU's reductions over the vocabulary follow the number of rows."""
    words = {"sequences": "each sequence by itself", "passes": "the rows of each forward pass together"}
    some = [Option(name, words[name], whole=True) for name, role in GROUPS.items() if seen.has(role)]
    all_rows = Option("all", "all rows together", whole=True)
    return [Setting("rows", "order_batch", (all_rows, *some, Option("alone", "each row by itself", whole=True)))]


def scaled(seen: Observation, logits_TV: torch.Tensor, pick: Mapping[str, str]) -> torch.Tensor:
    """Logits after cast, padding and temperature, [T, V]."""
    if pick.get("vocabulary") == "true":
        logits_TV = logits_TV[:, : int(seen.number("vocabulary", logits_TV.shape[-1]))]
    logits_TV = logits_TV.to(torch.bfloat16) if "bf16" in (pick["logits"], pick["inner"]) else logits_TV
    temperature = seen.number("temperature", 1.0)
    how = pick.get("temperature", "none")
    if how == "dtype":
        logits_TV = logits_TV / temperature
    logits_TV = logits_TV if pick["inner"] != "f32" else logits_TV.float()
    if how == "divide":
        logits_TV = logits_TV / temperature
    elif how == "multiply":
        logits_TV = logits_TV * (1.0 / temperature)
    return logits_TV


def run(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """float32 [T] (or the output's dtype)."""
    how = pick.get("rows", "all")
    if how == "all":
        return on_rows(seen, seen["logits"], seen["token"], pick)
    logits_TV, token_T = seen["logits"], seen["token"]
    number_T = seen[GROUPS[how]] if how in GROUPS else torch.arange(len(logits_TV), device=logits_TV.device)
    return in_groups(number_T, lambda rows: on_rows(seen, logits_TV[rows], token_T[rows], pick))


def on_rows(seen: Observation, logits_TV: torch.Tensor, token_T: torch.Tensor, pick: Mapping[str, str]) -> torch.Tensor:
    """The step on rows that run together."""
    logits_TV = scaled(seen, logits_TV, pick)
    token_T1 = token_T.long()[:, None]
    form, _, width = pick["form"].partition(":")
    if form == "log_softmax":
        out_T = logits_TV.log_softmax(-1).gather(1, token_T1)[:, 0]
    elif form == "float64":
        out_T = logits_TV.double().log_softmax(-1).gather(1, token_T1)[:, 0]
    elif form == "log_of_softmax":
        out_T = logits_TV.softmax(-1).log().gather(1, token_T1)[:, 0]
    else:
        own_T = logits_TV.gather(1, token_T1)[:, 0]
        if form == "logsumexp":
            out_T = own_T - torch.logsumexp(logits_TV, -1)
        elif form == "shifted":
            peak_T = logits_TV.amax(-1)
            out_T = own_T - peak_T - torch.log(torch.exp(logits_TV - peak_T[:, None]).sum(-1))
        else:
            parts = torch.stack([part.logsumexp(-1) for part in torch.split(logits_TV, int(width), -1)], -1)
            out_T = own_T - torch.logsumexp(parts, -1)
    out_T = out_T.to(seen.rollout.dtype)
    return out_T / seen.number("temperature", 1.0) if pick.get("temperature") == "after" else out_T


LOGPROB = Arithmetic("logprob", ("logits", "token", "sequence", "pass"), settings, run)
