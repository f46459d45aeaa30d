"""What results were taken with: the machine, the versions, the commit."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
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


@dataclass(frozen=True)
class Busy:
    """Seconds of processor time so far: of everybody, of some processes, and of the clock."""

    everybody: float
    ours: float
    clock: float


def busy(*processes: int) -> Busy | None:
    """What Linux tells of it; None elsewhere. Time that a host takes from a virtual machine is somebody's, too."""
    try:
        tick = os.sysconf("SC_CLK_TCK")
        fields = [int(x) for x in Path("/proc/stat").read_text("ascii").splitlines()[0].split()[1:]]
        user, nice, system, _, _, irq, softirq, steal = fields[:8]
        ours = 0
        for process in processes:
            # The name, which stands in brackets, may hold anything.
            found = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            ours += int(found[11]) + int(found[12])
    except (OSError, ValueError, IndexError):
        return None
    return Busy((user + nice + system + irq + softirq + steal) / tick, ours / tick, perf_counter())


def others(before: Busy | None, after: Busy | None, cores: int) -> float | None:
    """Which share of the cores was taken by processes that are not ours."""
    if before is None or after is None or after.clock <= before.clock:
        return None
    theirs = (after.everybody - before.everybody) - (after.ours - before.ours)
    return max(0.0, theirs / (after.clock - before.clock) / cores)
