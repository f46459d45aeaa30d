"""What XLA is told where programs run once: to compile them is all their cost."""

import os
from importlib.metadata import PackageNotFoundError, version

# No optimisation by LLVM; and each fused loop written by the old emitter, not through MLIR. Of the processor's time to
# compile attention on a CPU that leaves a ninth. XLA ends a process that names a flag it does not know, so the second
# is for releases in which it was seen.
FLAGS = "--xla_backend_optimization_level=0"
EMITTERS = "--xla_cpu_use_fusion_emitters=false"
KNOWN = ("0.10.",)


def compile_quickly() -> None:
    """Set XLA's flags for this process and its children, where nobody has; before JAX is imported.

    `attn-parity run` judges what XLA makes by default.
    """
    try:
        release = version("jaxlib")
    except PackageNotFoundError:
        return
    os.environ.setdefault("XLA_FLAGS", f"{FLAGS} {EMITTERS}" if release.startswith(KNOWN) else FLAGS)
