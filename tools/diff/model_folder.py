"""What the trainer's model folder says: its configuration and its weights, by checkpoint name."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch


class Missing(Exception):
    """Something a kind needs was not captured."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class Model:
    """What the model folder says: its configuration and, by checkpoint name, its weights."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json; empty when the trainer is not a model folder."""
        path = self.folder / "config.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if self.folder.name and path.is_file() else {}

    @cached_property
    def files(self) -> dict[str, Path]:
        """Checkpoint name -> safetensors file."""
        from safetensors import safe_open

        found: dict[str, Path] = {}
        for path in sorted(self.folder.glob("*.safetensors")) if self.config else []:
            with safe_open(path, "pt") as file:
                found |= dict.fromkeys(file.keys(), path)
        return found

    def weight(self, module: str, name: str = "weight") -> torch.Tensor:
        """A weight as stored; the embedding stands in for a tied head."""
        full = f"{module}.{name}"
        if full not in self.files and module == "lm_head":
            full = next((key for key in self.files if key.endswith("embed_tokens.weight")), full)
        if full not in self.files:
            raise Missing(f"no weight {full} in {self.folder}")
        return self.tensor(full)

    def tensor(self, full: str) -> torch.Tensor:
        """A tensor by its checkpoint name, one of `files`."""
        from safetensors import safe_open

        with safe_open(self.files[full], "pt") as file:
            value: torch.Tensor = file.get_tensor(full)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number of the configuration."""
        value = self.config.get(name, default)
        if value is None:
            raise Missing(f"config.json has no {name}")
        return float(value)

    @property
    def head_dim(self) -> int:
        """Elements of one attention head."""
        own = self.config.get("head_dim")
        return int(own) if own else int(self.number("hidden_size") // self.number("num_attention_heads"))

    @property
    def rope_base(self) -> float:
        """Base of the rotary frequencies."""
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        return float(rope.get("rope_theta", self.config.get("rope_theta", 10000.0)))

    @property
    def inv_freq(self) -> torch.Tensor:
        """float32 [D/2], the plain rotary frequencies."""
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default":
            raise Missing(f"rotary type {rope['rope_type']}")
        return 1.0 / (self.rope_base ** (torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim))
