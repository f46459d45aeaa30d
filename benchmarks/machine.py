"""What results were taken with: the machine, the versions, the commit."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "ml_dtypes", "torch", "jax", "jaxlib", "flax", "keras", "equinox")


def processor() -> str:
    """The name of the processor's model; of its family, where the system tells no more."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    family = f" (family {facts['cpu family']}, model {facts['model']})" if "cpu family" in facts else ""
    wide = [name for name in ("avx2", "avx512f", "amx_bf16") if name in facts.get("flags", "").split()]
    return facts["model name"] + family + (f", {' '.join(wide)}" if wide else "")


def memory() -> float | None:
    """Gigabytes."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError):
        return None


def blas() -> str:
    """What NumPy's matrix products are made by."""
    import numpy as np

    config: Any = np.show_config(mode="dicts")
    found = (config or {}).get("Build Dependencies", {}).get("blas", {})
    return f"{found.get('name', 'unknown')} {found.get('version', '')}".strip()


def commit() -> str | None:
    """The commit that the tree is at, and whether files differ from it; None without git."""
    here = Path(__file__).parent
    try:
        found = [
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True, timeout=10).stdout
            for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return found[0].strip() + (", with changes" if found[1].strip() else "")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found | {"BLAS of numpy": blas()}


def facts(threads: int) -> dict[str, Any]:
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory in GB": memory(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
    }
