"""Puts `setup.cpu_pieces` under the attention of vLLM's CPU engine: each pass that holds more rows of a request than
one loop step is laid out as more requests. Called from the plugin, where the environment asks for it.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from samebits.kernels.adapters.setup import cpu_pieces
from samebits.kernels.adapters.tables.vllm_hooks import Hooks, match

WHOLE = "samebits_whole"
"""Attribute of the backend's metadata: what it would have been made from, with whole requests."""
MARK = "_samebits_pieces"
HOOKS: Hooks = {
    ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionMetadataBuilder.build"): (
        "self",
        "common_prefix_len",
        "common_attn_metadata",
        "fast_build",
    ),
}
COMMON = (
    "query_start_loc",
    "query_start_loc_cpu",
    "seq_lens",
    "num_reqs",
    "max_query_len",
    "block_table_tensor",
    "causal",
)
"""Fields of the metadata that the runner makes, read and written here."""


def register() -> None:
    """Wrap the making of the metadata. May be called more than once; does nothing where the engine is no CPU's.

    Raises:
        PatchError: an unknown setting, or a hook that this vLLM does not have.
    """
    if not cpu_pieces.asked():
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    match(HOOKS)
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

    if installed():
        return
    method = CPUAttentionMetadataBuilder.build

    @functools.wraps(method)
    def build(self: Any, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        pieces = in_pieces(self, common_attn_metadata)
        metadata = method(self, common_prefix_len, pieces, fast_build)
        if pieces is not common_attn_metadata:
            setattr(metadata, WHOLE, common_attn_metadata)
        return metadata

    setattr(build, MARK, True)
    CPUAttentionMetadataBuilder.build = build


def installed() -> bool:
    """Whether this process's engine computes in pieces."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

    return hasattr(CPUAttentionMetadataBuilder.build, MARK)


def in_pieces(builder: Any, common: Any) -> Any:
    """The runner's metadata with pieces for requests; itself where no request has more rows than one loop step, or
    attention is not causal.
    """
    rows = cpu_pieces.most_rows(builder.isa, builder.num_heads, builder.num_kv_heads)
    other = builder.is_cross_attention or builder.is_encoder_only_attention
    if common.max_query_len <= rows or common.causal is not True or other:
        return common
    starts, lengths, table = cpu_pieces.cut(common.query_start_loc, common.seq_lens, common.block_table_tensor, rows)
    return dataclasses.replace(
        common,
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        num_reqs=len(lengths),
        max_query_len=rows,
        block_table_tensor=table,
    )
