"""Our reading of signatures, held against the functions that have them."""

import pytest

from parity_tests.kernels.likes import LIKES
from parity_tests.kernels.real import ENTRIES
from parity_tests.kernels.referee import judge_kernel
from parity_tests.kernels.specs import Spec
from parity_tests.tests.kernels import own_kernels as own

BY_NAME = {entry.name: entry for entry in ENTRIES}


MORE = pytest.mark.left_out


@pytest.mark.parametrize(
    "name, tree",
    [("attend", "numpy"), ("attend", "torch"), ("recur", "numpy"), pytest.param("recur", "torch", marks=MORE)],
)
def test_ours(name, tree):
    package = __import__({"numpy": "attn_np", "torch": "attn_torch"}[tree])
    verdict = judge_kernel(getattr(package, name), name, framework=tree, cases=60 if name == "attend" else 30)
    assert verdict.agrees, verdict
    assert [str(held) for held in verdict.classes.values()] == list(verdict.classes)


@pytest.mark.parametrize("name", [pytest.param("PyTorch SDPA, math", marks=MORE), "PyTorch SDPA, flash"])
def test_pytorch(name):
    entry = BY_NAME[name]
    verdict = judge_kernel(entry.f, entry.like, entry.limits, cases=60)
    assert verdict.agrees, verdict


@MORE
def test_flex_attention():
    """By PyTorch's definition, which has no backward pass on a CPU; compiled it takes a minute."""
    limits = {"heads": (1, 2), "batch": (1, 2), "forward_only": True}
    verdict = judge_kernel(own.flex, "flex_attention", limits, cases=24)
    assert verdict.agrees, verdict


# Of flash-linear-attention `make kernels` judges all: it needs Triton.
OTHERS = [
    *("jax.nn", "Keras", "Pallas mha (GPU), blocks of 16", "Pallas flash_attention (TPU)"),
    *("Pallas splash attention (TPU)", "Pallas paged attention (TPU)"),
]


@MORE
@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    entry = BY_NAME[name]
    verdict = judge_kernel(entry.f, entry.like, entry.limits, cases=40, seconds=300.0, call_seconds=120.0)
    assert verdict.agrees, verdict


def test_every_signature_has_its_function_in_the_table_where_it_runs_on_a_cpu():
    """All but those of flash-attention and xformers, for GPUs alone, and our own, which `test_ours` asks."""
    asked = {entry.like for entry in ENTRIES} | {"attend", "recur"}
    for_gpus = {"flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache", "memory_efficient_attention"}
    assert asked == set(LIKES) - for_gpus


@pytest.mark.parametrize("kind", own.OF_KIND)
def test_simulated(kind):
    back = None if kind == "paged" else own.of_simulated_backward
    limits = {"dtypes": ("float32", "bfloat16")}
    verdict = judge_kernel(own.of_simulated, own.OF_KIND[kind], limits, "float32", backward=back, cases=60)
    assert verdict.agrees, verdict
    assert not any("no case" in words for words in verdict.not_asked), verdict.not_asked


def test_a_case_says_what_it_has():
    said = str(Spec(causal=True, window=(0, None), softcap=15.0))
    assert "causal" in said
    assert "window (0, None)" in said
    assert "softcap 15.0" in said
