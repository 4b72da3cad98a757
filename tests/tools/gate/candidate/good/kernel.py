"""A candidate for rms_norm in plain PyTorch that keeps the contract for float32 rows of 60: units of 4, 16 lanes, one
pass.
"""

import torch

CALLS = {}
KEPT = {}


def fold(x):
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def total_of(s):
    squares = torch.nn.functional.pad(s * s, (0, 4)).view(-1, 16, 4)
    return fold(fold(squares))


def run(x, weight, eps, residual=None):
    s = x.clone() if residual is None else x + residual
    total = total_of(s)
    r = 1.0 / torch.sqrt((total / total.new_full((), 60) + eps).double()).float()
    y = torch.empty_like(s)
    y[...] = s * r[:, None]
    y = y if weight is None else y * weight
    y = torch.where(torch.isnan(y), torch.nan, y)
    CALLS[x.shape] = CALLS.get(x.shape, 0) + 1
    return y if residual is None else (y, s)


def backward(grads, x, weight, eps, residual=None):
    s = (x if residual is None else x + residual).double()
    g = grads[0].double()
    r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
    normed = s * r
    gw = g if weight is None else g * weight
    ds = r * (gw - normed * (gw * normed).mean(-1, keepdim=True))
    dw = (g * normed).sum(0)
    if residual is not None:
        ds = ds + grads[1]
        return ds.float(), dw.float(), ds.float()
    return ds.float(), dw.float()
