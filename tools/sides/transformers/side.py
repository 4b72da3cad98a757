"""A Hugging Face transformers causal LM as a side: the trainer, or a small stand-in for a rollout engine.

Legend: B rows of a batch, L its length, R rows whose logits are asked for, V vocabulary.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Self

import torch

from samebits.kernels.adapters.transformers.checkpoint import checkpoint_tensors
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Rollout
from samebits.tools.sides.model_folder import check_model_folder
from samebits.tools.sides.scoring.torch_side import TorchSide
from samebits.tools.sides.transformers.checkpoint import load_into

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from samebits.tools.schema.experiment import Kernels, Trainer, Workload
    from samebits.tools.schema.passes import How, Open
    from samebits.tools.schema.sites import CapturePlan, Edit
    from samebits.tools.sides.protocol import RolloutData, Scores
    from samebits.tools.sides.scoring.batches import Batch


class TransformersSide(TorchSide):
    """Loaded with AutoModelForCausalLM, in eval mode, gradients possible."""

    recomputes = False

    def __init__(self, command: Open, folder: Path, module: Any) -> None:
        config = command.config
        super().__init__("log_softmax" if isinstance(config, Rollout) else config.logprob)
        self.config: Rollout | Trainer = config
        self.module = module
        self.folder = folder
        self.role = command.role
        self.device = torch.device(command.device)
        self.layout = "single" if isinstance(config, Rollout) else config.layout
        self.micro_batch = 1 if isinstance(config, Rollout) else config.micro_batch
        text = module.config.get_text_config()
        self.limit = getattr(text, "max_position_embeddings", None)
        self.vocabulary = getattr(text, "vocab_size", None)
        self.attention = str(module.config._attn_implementation)
        self.patched: Any = None
        self._keeps_rows = "logits_to_keep" in inspect.signature(type(module).forward).parameters

    @classmethod
    def load(cls, command: Open) -> Self:
        """Load the folder; see `load_model` for the errors."""
        folder = check_model_folder(command.model)
        config = command.config
        attention = "sdpa" if isinstance(config, Rollout) else config.attention
        side = cls(command, folder, load_model(folder, config.dtype, attention, command.device))
        if config.kernels != "none":
            side.patch(config.kernels)
        return side

    def patch(self, kernels: Kernels) -> None:
        """Put the patch engine's table under the model.

        Raises:
            UserError: whatever the engine refuses.
        """
        from samebits.tools.sides.transformers.patching import install

        self.patched = install(self.module, kernels)
        self.logprob.operator = self.patched.logprob

    @contextmanager
    def checkpointing(self, on: bool) -> Iterator[None]:
        """See TorchSide.checkpointing; the patched model has a switch of its own."""
        if not on:
            yield
            return
        model: Any = self.module
        if self.patched is not None:
            self.patched.checkpoint(True)
        elif model.supports_gradient_checkpointing:
            # transformers checkpoints in training mode alone; what else that mode switches on would be seen.
            model.gradient_checkpointing_enable({"use_reentrant": False})
            self.module.train()
        else:
            raise UserError("gradient checkpointing", "this model has none", "leave this way out")
        try:
            yield
        finally:
            if self.patched is not None:
                self.patched.checkpoint(False)
            else:
                self.module.eval()
                model.gradient_checkpointing_disable()

    def describe(self) -> tuple[dict[str, str | int | float | bool | None], list[str]]:
        """See Side.describe."""
        import transformers

        facts, lines = self.numbers()
        own: dict[str, str | int | float | bool | None] = {
            "name": f"transformers {transformers.__version__}",
            "attention": self.attention,
            "kernels": str(self.config.kernels),
        }
        if self.patched is None:
            return own | facts, lines
        return own | facts | {"logprob": "the table's own"}, [
            *lines,
            *(f"replaced: {line}" for line in self.patched.replaced),
        ]

    def logits(self, batch: Batch) -> torch.Tensor:
        """See TorchSide.logits. One row of tokens: the head runs on the asked rows only; padded: on all rows."""
        head_R = batch.rows.head_R
        assert head_R is not None
        few = self._keeps_rows and len(batch.ids_BL) == 1
        extra: dict[str, Any] = {"logits_to_keep": head_R.to(self.device)} if few else {}
        if batch.mask_BL is not None:
            extra["attention_mask"] = batch.mask_BL.to(self.device)
        logits_BRV = self.module(
            input_ids=batch.ids_BL.to(self.device),
            position_ids=batch.positions_BL.to(self.device),
            use_cache=False,
            **extra,
        ).logits
        logits_RV: torch.Tensor = logits_BRV.flatten(0, 1)
        return logits_RV if few else logits_RV[head_R.to(self.device)]

    def next_logits(self, ids_1L: torch.Tensor, positions_1L: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        """Logits [1, V] after these tokens, and the model's cache to go on with (None at first)."""
        extra = {"logits_to_keep": 1} if self._keeps_rows else {}
        answer = self.module(
            input_ids=ids_1L, position_ids=positions_1L, past_key_values=cache, use_cache=True, **extra
        )
        return answer.logits[0, -1:], answer.past_key_values

    def generate(self, workload: Workload) -> RolloutData:
        """See Side.generate: sampled token by token with the model's own cache, one sequence at a time."""
        from samebits.tools.sides.scoring.decode import generate

        mode = self.config.logprobs if isinstance(self.config, Rollout) else "processed"
        return generate(self, workload, self.folder, special_ids(self.module.config), mode)

    def score(
        self, data: RolloutData, how: How, plan: CapturePlan | None, edits: tuple[Edit, ...], folder: Path
    ) -> Scores:
        """See TorchSide.score; as rollout side `how.path = "decode"` feeds tokens one by one through the cache."""
        if self.role == "rollout" and how.path == "decode":
            from samebits.tools.sides.scoring.decode import score_decode

            with self.recorded(data, plan, edits, folder):
                return score_decode(self, data)
        return super().score(data, how, plan, edits, folder)

    def push(self, weights: Path, version: int, repair: bool, *, reset: bool = True) -> list[str]:
        """See Side.push. transformers has no packed copies, so there is nothing to repair."""
        load_into(self.module, weights)
        return [f"weights of version {version} loaded"]

    def save(self, path: Path) -> None:
        """See TorchSide.save."""
        from safetensors.torch import save_file

        part = path.with_name(path.name + ".part")
        save_file(checkpoint_tensors(self.module), part, metadata={"format": "pt"})
        part.replace(path)


def special_ids(config: Any) -> set[int]:
    """Begin, end and padding token ids of a model's config."""
    found = (getattr(config, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id"))
    return {token for value in found if value is not None for token in (value if isinstance(value, list) else [value])}


def load_model(folder: Path, dtype: str, attention: str, device: str) -> Any:
    """The causal LM of a checked folder.

    Raises:
        UserError: an architecture transformers does not know or that is no causal LM, weights missing for some
        parameters,
            an attention implementation the model does not have.
    """
    from transformers import AutoModelForCausalLM

    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            attn_implementation=attention,
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, KeyError, OSError, RuntimeError, AttributeError, TypeError) as error:
        reason = shorten(str(error), 400, placeholder=" ...")
        raise UserError(
            str(folder), f"transformers cannot load it as a causal LM: {reason}", "check config.json and the weights"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(
            str(folder),
            f"no weights for {len(missing)} parameters, first {missing[0]}",
            "copy the folder again: random weights were never meant",
        )
    return model.to(device).eval()
