"""Kernels of other packages that run on a CPU, with what each takes, and the table of their verdicts.

    python -m parity_tests.kernels.real [--seconds 60] [--only NAME] [--write docs/kernels.md]

Those of Triton need the package and TRITON_INTERPRET=1; `make kernels` sets up an environment with both.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from parity_tests.kernels.referee import Verdict, judge_kernel

# Cases below which a row says that they are few.
FEW = 20
MARKS = ("<!-- kernels: written by `make kernels` -->", "<!-- end of kernels -->")


def sdpa_math(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """PyTorch's, by its definition."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, key, value, **options)


def sdpa_flash(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """PyTorch's blockwise kernel."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(query, key, value, **options)


@cache
def compiled() -> Callable[..., Any]:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes within this one
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = 10_000
    return torch.compile(flex_attention, dynamic=False)


def flex(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """`flex_attention` compiled."""
    return compiled()(query, key, value, **options)


def jax_nn(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """`jax.nn.dot_product_attention`."""
    import jax

    return jax.nn.dot_product_attention(query, key, value, **options)


def keras(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """`keras.ops.dot_product_attention` on PyTorch."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    return keras.ops.dot_product_attention(query, key, value, **options)


def pallas_mha(q: Any, k: Any, v: Any, segment_ids: Any, **options: Any) -> Any:
    """Pallas' attention for GPUs in blocks of 16, interpreted."""
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

    return mha(q, k, v, segment_ids, block_sizes=BlockSizes(16, 16, 16, 16, 16, 16), interpret=True, **options)


@cache
def interpreted() -> None:
    """From here on kernels for TPUs are interpreted, their backward passes too."""
    from jax._src.pallas.mosaic.interpret.interpret_pallas_call import set_tpu_interpret_mode

    set_tpu_interpret_mode()


def pallas_tpu(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Pallas' attention for TPUs, interpreted."""
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    interpreted()
    return flash_attention(q, k, v, **options)


def splash(mask: Any, **options: Any) -> Any:
    """Splash attention, interpreted."""
    from jax.experimental.pallas.ops.tpu.splash_attention import make_splash_mha_single_device

    return make_splash_mha_single_device(mask, interpret=True, **options)


def paged(q: Any, k_pages: Any, v_pages: Any, lengths: Any, page_indices: Any) -> Any:
    """Pallas' attention over pages for TPUs, interpreted."""
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    interpreted()
    return paged_attention(q, k_pages, v_pages, lengths, page_indices, pages_per_compute_block=page_indices.shape[1])


@cache
def one_launch() -> None:
    """Triton's kernels take the first of their launches; which one is fastest can be measured on a GPU alone."""
    os.environ["TRITON_INTERPRET"] = "1"
    tuner = import_module("triton.runtime.autotuner").Autotuner
    tuner.do_bench = staticmethod(lambda call, quantiles: (0.0,) * len(quantiles))


class Counted(int):
    """A loop's counter in Triton's interpreter, where it is Python's own number; compiled, it is a scalar of Triton."""

    def to(self, dtype: Any) -> "Counted":
        return self


@cache
def prepared() -> Any:
    """The module of flash-linear-attention's functions, whose loops count as compiled ones do."""
    one_launch()
    found = import_module("fla.ops")
    for name, module in list(sys.modules.items()):
        if name.startswith("fla.ops"):
            vars(module)["range"] = lambda *bounds: map(Counted, range(*bounds))
    return found


class Fla:
    """A function of flash-linear-attention in Triton's interpreter."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In the process that it runs in: the import takes half a minute, which no case should pay."""
        self.__dict__.update(state)
        prepared()

    def __call__(self, *args: Any, **options: Any) -> Any:
        return getattr(prepared(), self.__name__)(*args, **options)


@dataclass(frozen=True)
class Entry:
    """A kernel of the table.

    Attributes:
        name: of the row.
        f, like, limits: as of `assert_kernel`.
        packages: whose versions decide.
        times: how many times the seconds of others it gets.
    """

    name: str
    f: Callable[..., Any]
    like: str
    limits: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ("jax",)
    times: float = 1.0


TORCH, ALL = ("torch",), ("float64", "float32", "bfloat16", "float16")
SMALL = {"heads": (1, 2), "batch": (1, 2)}
FORWARD = {"forward_only": True}
FLA: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *((f"fused_recurrent_{name}", {}) for name in ("linear_attn", "simple_gla", "gla", "delta_rule")),
    # Which have no backward pass.
    *((f"fused_recurrent_{name}", FORWARD) for name in ("gated_delta_rule", "kda")),
    *((f"chunk_{name}", {}) for name in ("linear_attn", "simple_gla", "gla", "gated_delta_rule", "kda")),
    ("chunk_delta_rule", {"dtypes": ("float16",)}),  # which refuses float32
)
ENTRIES = (
    Entry("PyTorch SDPA, math", sdpa_math, "scaled_dot_product_attention", {"dtypes": ALL}, TORCH),
    Entry(
        "PyTorch SDPA, flash", sdpa_flash, "scaled_dot_product_attention",
        {"dtypes": ALL, "value_dims": None, "gradients": ("q", "k", "v"),
         "options": ("causal", "mask", "bias", "scale", "grouped", "unequal lengths"),
         "block": 512},  # keys at once, of 32 to 256 queries
        TORCH,
    ),
    Entry("PyTorch flex_attention, compiled", flex, "flex_attention", FORWARD | SMALL, TORCH, times=3.0),
    Entry("jax.nn", jax_nn, "jax.nn.dot_product_attention", {"dtypes": ("float32",)} | SMALL),
    Entry("jax.nn, bfloat16", jax_nn, "jax.nn.dot_product_attention", {"dtypes": ("bfloat16",)} | SMALL),
    Entry("Keras", keras, "keras.ops.dot_product_attention", {}, ("keras", "torch")),
    Entry("Pallas mha (GPU), blocks of 16", pallas_mha, "pallas mha", SMALL | {"block": 16}, times=3.0),
    Entry("Pallas flash_attention (TPU)", pallas_tpu, "pallas tpu flash_attention", SMALL),
    Entry("Pallas splash attention (TPU)", splash, "splash", SMALL),
    Entry("Pallas paged attention (TPU)", paged, "pallas paged_attention", {"batch": (1, 2)}),
    *(
        Entry(f"fla {name}", Fla(name), name, SMALL | limits, ("flash-linear-attention", "triton"))
        for name, limits in FLA
    ),
)  # fmt: skip


def versions(entry: Entry) -> str:
    """The versions of an entry's packages; empty where one is not installed."""
    try:
        return ", ".join(f"{name} {version(name)}" for name in entry.packages)
    except PackageNotFoundError:
        return ""


def row(entry: Entry, verdict: Verdict) -> str:
    """The line of the table."""
    held = "; ".join(f"{dtype}: {found}" for dtype, found in verdict.classes.items()) or "-"
    differs = "agrees"
    if verdict.smallest is not None:
        n = len(verdict.failures)
        differs = f"{n} case{'s' if n > 1 else ''}: " + verdict.smallest.words.split("\n")[0].replace("|", "/")
        differs += f" ({verdict.smallest.spec})" + (f"; cause: {verdict.cause}" if verdict.cause else "")
    count = sum(verdict.cases.values())
    cases = f"{count}, which is few" if count < FEW else str(count)
    return f"| {entry.name} | {versions(entry)} | {cases} | {held} | {differs} |"


def table(seconds: float, only: str) -> str:
    """The table, a row as soon as it is known."""
    found = ["| kernel | versions | cases | class of arithmetic | verdict |", "| --- | --- | --- | --- | --- |"]
    for entry in ENTRIES:
        if only.lower() not in entry.name.lower() or not versions(entry):
            continue
        verdict = judge_kernel(entry.f, entry.like, entry.limits, seconds=entry.times * seconds, call_seconds=120.0)
        found.append(row(entry, verdict))
        print(verdict, flush=True)
    return "\n".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each kernel")
    parser.add_argument("--only", default="", help="kernels with this in their names")
    parser.add_argument("--write", type=Path, default=None, help="a page to write the table into")
    given = parser.parse_args()
    text = table(given.seconds, given.only)
    print(text)
    if given.write is not None:
        page = given.write.read_text(encoding="utf-8")
        before, rest = page.split(MARKS[0])
        after = rest.split(MARKS[1])[1]
        given.write.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    # Its functions go to another process by the module's name.
    from parity_tests.kernels import real

    real.main()
