"""A model of one's own as a samebits side, in few lines: an embedding, one causal attention, a head.

    [trainer]
    side = "python:tiny_side:factory"
    model = "seed-7"
    dtype = "float32"
    env = { PYTHONPATH = "docs/examples" }

Legend: B rows, L length, D width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, POSITIONS = 64, 32, 128


class Net(nn.Module):
    """Submodules have names, so that their outputs can be tapped."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Embedding(POSITIONS, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(
        self, ids_BL: torch.Tensor, positions_BL: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        x_BLD = self.embed(ids_BL) + self.place(positions_BL)
        q, k, v = self.qkv(x_BLD).chunk(3, dim=-1)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=1), torch.cat([past[1], v], dim=1)
        ahead = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril(k.shape[1] - q.shape[1])
        x_BLD = self.norm(x_BLD + self.out(functional.scaled_dot_product_attention(q, k, v, attn_mask=ahead)))
        return self.head(x_BLD), (k, v)


class Tiny:
    """What the factory returns."""

    vocabulary = VOCABULARY
    max_positions = POSITIONS

    def __init__(self, module: Net) -> None:
        self.module = module

    def forward(self, token_ids_BL: torch.Tensor, position_ids_BL: torch.Tensor) -> torch.Tensor:
        """Logits [B, L, V] of whole sequences."""
        return self.module(token_ids_BL, position_ids_BL)[0]

    def decode(
        self, token_ids_1L: torch.Tensor, position_ids_1L: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Optional: the tokens after those in the cache."""
        return self.module(token_ids_1L, position_ids_1L, cache)


def factory(model: str, dtype: torch.dtype, device: torch.device, scale: float = 1.0) -> Tiny:
    """Called once. `model` is the setting as it stands (here "seed-N"); further arguments come from
    [trainer.options].
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(model.removeprefix("seed-")))
        net = Net()
    with torch.no_grad():
        net.head.weight.mul_(scale)
    return Tiny(net.to(device, dtype).eval())
