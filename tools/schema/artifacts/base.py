"""What every artifact's manifest holds."""

from __future__ import annotations

from samebits.tools.schema.base import SCHEMA_VERSION, Model


class Environment(Model):
    """What the numbers depend on besides the code: two artifacts of unequal environments are never compared
    silently."""

    platform: str = ""
    """Machine, CPU model or GPU name with its compute capability and driver."""
    python: str = ""
    packages: dict[str, str] = {}
    """Versions of torch, triton, vllm, transformers, samebits, as installed."""
    variables: dict[str, str] = {}
    """Environment variables that change numbers (VLLM_*, ATEN_CPU_CAPABILITY, ONEDNN_*, CUBLAS*, OMP_NUM_THREADS,
    ...)."""
    facts: dict[str, str] = {}
    """What the libraries chose: CPU capability, attention isa, BLAS library, TF32 switches."""


class Manifest(Model):
    """manifest.json of an artifact folder. `samebits.tools.store` fills `files` and checks them on reading."""

    schema_version: int = SCHEMA_VERSION
    kind: str
    made_from: dict[str, str] = {}
    """sha256 of the manifest of every artifact this one was made from, by role."""
    environment: Environment = Environment()
    files: dict[str, str] = {}
    """sha256 of every other file of the folder, by name."""
