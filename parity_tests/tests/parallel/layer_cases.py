"""Whole layers whose sequence lies on several devices: which are asked, and what one device gives."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from attn_np import contract
from parity_tests.tests.inputs import random_inputs
from parity_tests.tests.parallel.cases import LAYOUTS, Arrays
from parity_tests.tests.witness import bounded, cotangent, weights_of

# Asked by default: keys around a ring, keys gathered in another order, a compressed cache, scores in rows.
# Then states: with a convolution, by a delta rule, with positions and a norm.
ASKED_LAYERS = (
    "decoder/sinks/zigzag",
    "alibi/causal/striped",
    "mla/absorbed/contiguous",
    "luong/causal/zigzag",
    "gated_delta/chunked/contiguous",
    "kda/recurrent/contiguous",
)


def layers() -> list[Any]:
    """Examples of causal variants that cache keys or a linear state, with a layout: "variant/example/layout"."""
    found, states = [], []
    for variant in contract.variants():
        for example, config in contract.examples(variant).items():
            axes = [letters.split() for letters in config.cache_axes().values()]
            if axes and config.family == "linear":
                states.append(f"{variant}/{example}/contiguous")
            elif axes and all("s" in letters for letters in axes):
                found.append(f"{variant}/{example}")
    named = {f"{name}/{LAYOUTS[i % len(LAYOUTS)]}": None for i, name in enumerate(found)}
    named |= dict.fromkeys((*states, *ASKED_LAYERS))
    return [pytest.param(name, marks=() if name in ASKED_LAYERS else pytest.mark.left_out) for name in named]


@cache
def held_layer(name: str) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of a call without masks, its parameters and the gradient of its output; and what one device gives."""
    variant, example, _ = name.split("/")
    config = contract.examples(variant)[example]
    names = [n for n in config.arguments() if n not in ("mask", "bias", "keep", "noise")]
    inputs, weights = random_inputs(config, names, b=2, t=16, s=16), weights_of(config)
    config = replace(config, dropout=0.0) if getattr(config, "dropout", 0) else config
    want = bounded(config, inputs, weights)
    return {**inputs, **weights, "dy": cotangent(want["y"].shape)}, want
