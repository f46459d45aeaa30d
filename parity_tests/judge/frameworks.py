"""The frameworks and types that are judged, what judging asks of the frameworks, and their versions."""

from importlib.metadata import PackageNotFoundError, version
from platform import platform, python_version

DTYPES = ("float64", "float32", "bfloat16", "float16")
FRAMEWORKS = ("numpy", "torch", "jax")
NEEDS = {"torch": ("torch",), "jax": ("jax", "flax")}


def prepare(frameworks: tuple[str, ...], products: str = "full") -> None:
    """Float64 in JAX, one thread for PyTorch, as the processes share the cores, and the precision of products."""
    if "jax" in frameworks:
        import jax

        jax.config.update("jax_enable_x64", True)
        if products == "tf32":
            jax.config.update("jax_default_matmul_precision", "tensorfloat32")
    if "torch" in frameworks:
        import torch

        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("high" if products == "tf32" else "highest")


def versions() -> dict[str, str]:
    """What the numbers were computed with."""
    found = {"python": python_version(), "platform": platform()}
    for name in ("attn-parity", "numpy", "torch", "jax", "flax"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
