"""A PyTorch module's weights and modules as samebits writes them down.

Legend: R rows of a weight (its first dimension), C all elements of a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from samebits.tools.schema.artifacts.weights import ModuleView, SideModules, SideWeights, WeightView

if TYPE_CHECKING:
    from collections.abc import Callable


def weight_views(role: str, root: torch.nn.Module) -> SideWeights:
    """Every parameter, row by row. A tied weight appears under each module that uses it."""
    views = []
    for path, module in root.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            views.append(weight_view(path, name, parameter.detach(), "parameter"))
    return SideWeights(role=role, weights=tuple(views))


def weight_view(module: str, name: str, weight: torch.Tensor, source: str) -> WeightView:
    """One weight of any number of dimensions; its rows are those of the first dimension."""
    from samebits.tools.diff.digest import digest_rows, to_hex

    weight_RC = weight.reshape(len(weight), -1) if weight.dim() else weight.reshape(1, 1)
    rows = tuple(to_hex(digest_rows(weight_RC)))
    return WeightView(
        module=module,
        name=name,
        dtype=str(weight.dtype).removeprefix("torch."),
        shape=tuple(weight.shape),
        rows=rows,
        trivial=len(set(rows)) <= 1,
        source=source,
        narrow=_narrow(weight_RC, rows) if weight.dtype == torch.float32 else {},
    )


def _narrow(weight_RC: torch.Tensor, rows: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """See WeightView.narrow."""
    from samebits.tools.diff.digest import digest_rows, to_hex

    found = {}
    for dtype in (torch.bfloat16, torch.float16):
        narrow_RC = weight_RC.to(dtype)
        same_R = (narrow_RC.float().view(torch.int32) == weight_RC.contiguous().view(torch.int32)).all(1).tolist()
        if any(same_R):
            digests = to_hex(digest_rows(narrow_RC))
            found[str(dtype).removeprefix("torch.")] = tuple(
                digest if same else row for digest, same, row in zip(digests, same_R, rows, strict=True)
            )
    return found


def module_views(role: str, root: torch.nn.Module, run: Callable[[], object]) -> SideModules:
    """Modules with the number and order of their calls during `run`."""
    calls: dict[str, int] = {}
    order: dict[str, int] = {}

    def note(path: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            calls[path] = calls.get(path, 0) + 1
            order.setdefault(path, len(order))

        return hook

    handles = [module.register_forward_pre_hook(note(path)) for path, module in root.named_modules()]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    views = [
        ModuleView(path=path, kind=type(module).__name__, calls=calls.get(path, 0), order=order.get(path, -1))
        for path, module in root.named_modules()
    ]
    return SideModules(role=role, modules=tuple(sorted(views, key=lambda v: v.order if v.order >= 0 else len(views))))
