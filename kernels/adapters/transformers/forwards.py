"""What is put in place of the modules' own `forward`. Children are called as modules, so hooks on them fire as before.

Legend: B batch rows, L tokens of one, D hidden; T token rows (B * L), H query heads, G key/value heads, E head dim,
X experts, R experts per token, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables.operators import Operator, RoleName
from samebits.kernels.adapters.tables.pack import PLAIN, Pack, read

CHECKPOINT = "turn it off and call checkpoint() of what patched the model"
Forward = Callable[..., Any]
Pair = tuple[torch.Tensor, torch.Tensor]


class Run:
    """What the replaced forwards of one model share."""

    def __init__(self, operators: Mapping[RoleName, Operator], table_PE: torch.Tensor) -> None:
        self.operators = operators
        self.table_PE = table_PE
        self.pack: Pack | None = None
        self.body: set[str] = set()
        """Paths of the replaced modules that every pass must run."""
        self.ran: set[str] = set()
        self.checkpoint = False
        """Keep only the inputs of each layer for the backward pass."""

    @contextmanager
    def using(self, pack: Pack) -> Iterator[None]:
        """The sequences of an earlier pass, while a layer of it is computed again."""
        before, self.pack = self.pack, pack
        try:
            yield
        finally:
            self.pack = before

    def packed(self) -> Pack:
        """The sequences of the pass that is running."""
        if self.pack is None:
            raise PatchError(
                "a patched module", "was called outside its model", "call the whole model, or its `model` part"
            )
        return self.pack


class Replacement:
    """A replaced forward: notes that it ran. No copies: one would go on using the first model's weights."""

    def __init__(self, run: Run, path: str, forward: Forward) -> None:
        self.run, self.path, self.forward = run, path, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.run.ran.add(self.path)
        return self.forward(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise PatchError("a patched model", "cannot be copied or pickled", "undo the patch, copy, patch both")


def embedding(run: Run, module: Any) -> Forward:
    """ids [B, L] -> [B, L, D]."""
    return lambda ids: run.operators["embedding"](ids, module.weight, module.padding_idx)


def norm(run: Run, module: Any) -> Forward:
    """A norm that can take the residual with it: (x, residual) gives the norm of the sum, and the sum.

    The last norm of the model gets the pair of the last layer as one argument and gives the norm alone.
    """

    def forward(hidden: torch.Tensor | Pair, residual: torch.Tensor | None = None) -> torch.Tensor | Pair:
        last = isinstance(hidden, tuple)
        if isinstance(hidden, tuple):
            hidden, residual = hidden
        size = hidden.shape[-1]
        rows = None if residual is None else residual.reshape(-1, size)
        y, total = run.operators["norm"](hidden.reshape(-1, size), rows, module.weight, module.variance_epsilon)
        y = y.view(hidden.shape)
        return y if last or total is None else (y, total.view(hidden.shape))

    return forward


def layer(run: Run, module: Any) -> Forward:
    """A pre-norm decoder layer that leaves its last addition to the next norm: gives (what the MLP adds, residual)."""

    def compute(hidden_states: torch.Tensor | Pair) -> Pair:
        if isinstance(hidden_states, tuple):
            x, residual = module.input_layernorm(*hidden_states)
        else:
            x, residual = module.input_layernorm(hidden_states), hidden_states
        x, residual = module.post_attention_layernorm(module.self_attn(x)[0], residual)
        return module.mlp(x), residual

    def forward(hidden_states: torch.Tensor | Pair, **_: Any) -> Pair:
        if not (run.checkpoint and torch.is_grad_enabled()):
            return compute(hidden_states)
        pack = run.packed()

        def again(hidden: torch.Tensor | Pair) -> Pair:
            with run.using(pack):
                return compute(hidden)

        return checkpoint(again, hidden_states, use_reentrant=False)  # type: ignore[no-any-return]

    return forward


def attention(run: Run, module: Any) -> Forward:
    """Projections, norms of q and k where there are any, rotary, causal attention inside each sequence."""
    size = module.head_dim
    normed = hasattr(module, "q_norm")

    def forward(hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        pack = run.packed()
        shape = hidden_states.shape[:-1]
        q, k, v = (
            project(hidden_states).view(*shape, -1, size) for project in (module.q_proj, module.k_proj, module.v_proj)
        )
        if normed:
            q, k = module.q_norm(q), module.k_norm(k)
        q_THE, k_TGE, v_TGE = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))
        q_THE, k_TGE = run.operators["rotary"](q_THE, k_TGE, run.table_PE, pack)
        out_THE = run.operators["attention"](q_THE, k_TGE, v_TGE, module.scaling, pack)
        return module.o_proj(out_THE.reshape(*shape, -1)), None

    return forward


class Merged:
    """Linears with one input, computed as one product over their stacked weights, as the engine does.

    The first one called computes; the others take their columns of it. A call with another input computes anew.
    """

    def __init__(self, run: Run, modules: list[Any]) -> None:
        self.run, self.modules = run, modules
        self.sizes = [module.weight.shape[0] for module in modules]
        self.input: torch.Tensor | None = None
        self.left: dict[int, torch.Tensor] = {}

    def forward(self, place: int) -> Forward:
        """The forward of the place-th linear."""

        def forward(x: torch.Tensor) -> torch.Tensor:
            if self.input is not x or place not in self.left:
                self.input, self.left = x, dict(enumerate(self._compute(x)))
            part = self.left.pop(place)
            if not self.left:
                self.input = None
            return part.view(*x.shape[:-1], -1)

        return forward

    def _compute(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights = [module.weight for module in self.modules]
        biases = [module.bias for module in self.modules]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        bias = None if biases[0] is None else torch.cat(biases)
        out: torch.Tensor = self.run.operators["linear"](x.reshape(-1, x.shape[-1]), weight, bias)
        return torch.split(out, self.sizes, -1)


def mlp(run: Run, module: Any) -> Forward:
    """down(activation(gate, up))."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        gate, up = (part(x).flatten(0, -2) for part in (module.gate_proj, module.up_proj))
        out: torch.Tensor = module.down_proj(run.operators["activation"](gate, up).view(*x.shape[:-1], -1))
        return out

    return forward


def router(run: Run, module: Any) -> Forward:
    """(logits_TX, weight_TR float32, id_TR int32)."""

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits_TX = run.operators["linear"](x.reshape(-1, x.shape[-1]), module.weight, None)
        return logits_TX, *run.operators["router"](logits_TX, module.top_k, module.norm_topk_prob)

    return forward


def experts(run: Run, module: Any) -> Forward:
    """x_TD, id_TR, weight_TR -> [T, D]."""
    return lambda x_TD, id_TR, weight_TR: run.operators["experts"](
        x_TD, module.gate_up_proj, module.down_proj, weight_TR, id_TR
    )


def head(run: Run, module: Any) -> Forward:
    """hidden [..., D] -> logits [..., V]."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = run.operators["head"](x.reshape(-1, x.shape[-1]), module.weight, module.bias)
        return out.view(*x.shape[:-1], -1)

    return forward


def enter(run: Run, names: list[str]) -> Callable[..., Any]:
    """Before each pass of the model's body: read the sequences, refuse what the operators do not do."""

    def hook(
        module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        given = dict(zip(names, args, strict=False)) | kwargs
        if given.get("use_cache") or given.get("past_key_values") is not None:
            raise PatchError("a key/value cache", "is not supported by the patched model", PLAIN)
        for word in ("output_hidden_states", "output_attentions", "output_router_logits"):
            if given.get(word):
                raise PatchError(word, "is not supported by the patched model", "take taps with forward hooks instead")
        weight = next(module.parameters())
        if (weight.dtype, weight.device) != (run.table_PE.dtype, run.table_PE.device):
            raise PatchError(
                "the patched model", f"was moved to {weight.dtype} on {weight.device}", "undo, move, patch again"
            )
        if getattr(module, "gradient_checkpointing", False):
            raise PatchError("gradient checkpointing", "is not supported by the patched model in this form", CHECKPOINT)
        inputs = given.get("input_ids")
        if inputs is None:
            raise PatchError("input_ids", "are missing", "pass input_ids [B, L]")
        positions, mask = given.get("position_ids"), given.get("attention_mask")
        if mask is not None and mask.dim() != 2:
            raise PatchError("attention_mask", "is not [B, L]", "pass a [B, L] mask with padding on the right, or none")
        if positions is None:
            positions = torch.arange(inputs.shape[1], device=inputs.device)[None]
        run.ran.clear()
        run.pack = read(positions.expand(inputs.shape[:2]), mask)
        if int(run.pack.position_T.max()) >= run.table_PE.shape[0]:
            raise PatchError(
                "position_ids", f"go beyond the model's {run.table_PE.shape[0]} positions", "cut the sequences"
            )
        # A mask of four axes is taken as it is, so transformers builds none; nothing here reads it.
        unread = torch.zeros(1, 1, 1, 1, device=inputs.device)
        return (), given | {
            "position_ids": positions,
            "attention_mask": unread,
            "use_cache": False,
            "past_key_values": None,
        }

    return hook


def leave(run: Run) -> Callable[..., None]:
    """After each pass, also a failed one: what was replaced must have run, else something stands in front of it."""

    def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
        run.pack = None
        missing = sorted(run.body - run.ran)
        if output is not None and missing:
            raise PatchError(
                f"module {missing[0]}",
                "was replaced but did not run in this pass",
                "undo other patches of the model first",
            )

    return hook
