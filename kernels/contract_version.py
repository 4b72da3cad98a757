"""The version of kernels/CONTRACT.md. Any change of an order, a rounding or a special value is a new version."""

from __future__ import annotations

CONTRACT_VERSION = 3
