"""What XLA is told where programs run once: to compile them is all their cost."""

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# No optimisation by LLVM; each fused loop written by the old emitter, not through MLIR; and one LLVM module for each
# program, not one for each thread. Of the processor's time to compile attention on a CPU that leaves a tenth. XLA ends
# a process that names a flag it does not know, so all but the first are for releases in which they were seen.
FLAGS: dict[str, Any] = {"xla_backend_optimization_level": 0}
MORE: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
KNOWN = ("0.10.",)


def flags() -> dict[str, Any]:
    """The flags that this release of XLA knows; none without JAX."""
    try:
        release = version("jaxlib")
    except PackageNotFoundError:
        return {}
    return FLAGS | MORE if release.startswith(KNOWN) else FLAGS


def compile_quickly() -> None:
    """Set XLA's flags for this process and its children, if they are not set; before JAX is imported.

    `attn-parity run` judges what XLA makes by default.
    """
    words = [f"--{name}={str(value).lower()}" for name, value in flags().items()]
    if words:
        os.environ.setdefault("XLA_FLAGS", " ".join(words))
