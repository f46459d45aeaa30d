"""What XLA is told where programs run once: to compile them is all their cost."""

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# No optimisation by LLVM; and each fused loop written by the old emitter, not through MLIR. Of the processor's time to
# compile attention on a CPU that leaves a ninth. XLA ends a process that names a flag it does not know, so the second
# is for releases in which it was seen.
FLAGS: dict[str, Any] = {"xla_backend_optimization_level": 0}
EMITTERS: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False}
KNOWN = ("0.10.",)


def flags() -> dict[str, Any]:
    """The flags that this release of XLA knows; none without JAX."""
    try:
        release = version("jaxlib")
    except PackageNotFoundError:
        return {}
    return FLAGS | EMITTERS if release.startswith(KNOWN) else FLAGS


def compile_quickly() -> None:
    """Set XLA's flags for this process and its children, if they are not set; before JAX is imported.

    `attn-parity run` judges what XLA makes by default.
    """
    words = [f"--{name}={str(value).lower()}" for name, value in flags().items()]
    if words:
        os.environ.setdefault("XLA_FLAGS", " ".join(words))
