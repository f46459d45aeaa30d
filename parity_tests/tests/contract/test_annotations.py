"""Annotations are true: with jaxtyping's import hook calls are checked, forward and backward:
of every variant the first example, and a 24th of the others.

The hook wraps each annotated function, which costs much time and which torch.compile can't trace, so it lives in a
process of its own. `make test HOOK=...` puts the whole suite under it.
"""

import subprocess
import sys
from pathlib import Path

HOOKED = """
from jaxtyping import TypeCheckError, install_import_hook

install_import_hook(["attn_np", "attn_jax", "attn_torch"], "beartype.beartype")

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from parity_tests.tests.inputs import EXAMPLES, TREES, inputs_for


class Duck:
    # An array by its protocol alone, as the judge's arrays are.
    def __init__(self, x):
        self.x, self.shape, self.dtype, self.ndim = x, x.shape, x.dtype, x.ndim

    def __array_function__(self, *args):
        raise NotImplementedError

    def __getitem__(self, index):
        return Duck(self.x[index])


def call(tree, layer, inputs, **options):
    if tree.name == "jax":  # what is annotated is checked while JAX traces
        return jax.eval_shape(lambda given: tree.package.trace(layer, **given, **options), tree.arrays(inputs))
    return tree.package.trace(layer, **tree.arrays(inputs), **options)


firsts = list({variant: (variant, example) for variant, example in reversed(EXAMPLES)}.values())
asked = firsts + [pair for pair in EXAMPLES if pair not in firsts][::24]


def check(tree, dtype, variant, example):
    layer = tree.layer(variant, example, dtype)
    for kind in ("plain", "full") if tree.name == "numpy" and (variant, example) in firsts else ("full",):
        call(tree, layer, inputs_for(variant, example, kind, dtype))
    inputs = inputs_for(variant, example, "full", dtype)
    if tree.name == "numpy":
        y, pull = tree.package.value_and_vjp(layer, **inputs)
        pull(y[0] if isinstance(y, tuple) else y)
    name, first = next((n, x) for n, x in inputs.items() if x.dtype.kind not in "b")
    wrong = [first[0], first[None], first > 0]
    if tree.name == "numpy":
        wrong.append(Duck(first[0]))
        layer.check(**inputs | {name: Duck(first)})
    for x in wrong:
        try:
            layer(**tree.arrays(inputs | {name: x}))
        except TypeCheckError:
            continue
        got = f"{type(x).__name__} {x.shape} of {x.dtype}"
        raise SystemExit(f"{tree.name}, {variant}: the hook lets {got} pass as {name}")


for tree in TREES.values():
    for dtype in ("float64", "bfloat16"):
        # The twins' annotations are those of NumPy's layers, word by word, and JAX compiles every operation.
        share = {"numpy": asked, "torch": firsts[::3]}
        some = share.get(tree.name, firsts[::6]) if dtype == "float64" else firsts[::6]
        for variant, example in some:
            check(tree, dtype, variant, example)
print("checked", len(asked))
"""


def test_annotations_hold() -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", HOOKED], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("checked ")
