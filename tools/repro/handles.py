"""Operators whose argument is a handle of weights packed elsewhere: how a trace remakes the handle.

The packed weight is read back by feeding the identity through the operator itself, so that the trace holds the weight
the operator uses and not the one somebody meant to give it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.schema.artifacts.trace import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.repro.record import TraceRecorder

CACHE = 32
"""Primitive cache size given to the remade handle; it changes no bit."""


def onednn_mm(recorder: TraceRecorder, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """`_C.onednn_mm(c, a, bias, handler)`: the handler is an address in a one-element tensor."""
    c, a, _, handler = args
    if recorder.find(handler) is not None:
        return args
    k, n = a.shape[-1], c.shape[-1]
    weight_kn = torch.empty(k, n, dtype=c.dtype, device=c.device)
    torch.ops._C.onednn_mm.default(weight_kn, torch.eye(k, dtype=a.dtype, device=a.device), None, handler)
    weight_nk = weight_kn.t().contiguous()
    number = recorder.named(weight_nk)
    turned = weight_nk.t()
    view = recorder.add(turned, made=True, offset=0)
    scalar = recorder.handle(int(handler.item()))
    recorder.calls.append(Call(op="aten.t.default", args=(number,), outs=({"value": view},), index=-1))
    make = "_C.create_onednn_mm_handler.default"
    recorder.calls.append(Call(op=make, args=({"value": view}, CACHE), outs=(scalar,), index=-1))
    made = {"value": recorder.add(handler, made=True, offset=0)}
    recorder.calls.append(
        Call(
            op="aten.scalar_tensor.default",
            args=(scalar,),
            kwargs={"dtype": {"dtype": "int64"}},
            outs=(made,),
            index=-1,
        )
    )
    return args


REBUILD: dict[str, Callable[[TraceRecorder, tuple[Any, ...]], tuple[Any, ...]]] = {"_C.onednn_mm.default": onednn_mm}
"""What `TraceRecorder(rebuild=...)` takes for vLLM's CPU operators."""
