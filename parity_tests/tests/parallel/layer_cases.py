"""Whole layers whose sequence lies on several devices: which are asked, and what one device gives."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from attn_np import contract, patterns
from parity_tests.tests.inputs import random_inputs
from parity_tests.tests.parallel.cases import LAYOUTS, Arrays
from parity_tests.tests.witness import bounded, cotangent, weights_of

# Layers whose keys travel in a ring, which take a pattern.
RING_LAYERS = (
    "chunked", "decoder", "dilated", "fused_qkv", "gated", "gqa", "mha", "qk_norm", "rotary", "sinks",
)  # fmt: skip
# Asked by default: keys around a ring, with documents packed into the sequence, keys gathered in another order, a
# compressed cache, scores in rows. Then states: with a convolution, by a delta rule, with positions and a norm.
ASKED_LAYERS = (
    "decoder/sinks/zigzag",
    "decoder/sinks/zigzag/packed",
    "chunked/causal/striped/packed",
    "alibi/causal/striped",
    "mla/absorbed/contiguous",
    "luong/causal/zigzag",
    "gated_delta/chunked/contiguous",
    "kda/recurrent/contiguous",
)


def layers() -> list[Any]:
    """Examples of causal variants that cache keys or a linear state, with a layout: "variant/example/layout"; where
    keys travel in a ring, once more with documents packed into the sequence: "variant/example/layout/packed".
    """
    found, states = [], []
    for variant in contract.variants():
        for example, config in contract.examples(variant).items():
            axes = [letters.split() for letters in config.cache_axes().values()]
            if axes and config.family == "linear":
                states.append(f"{variant}/{example}/contiguous")
            elif axes and all("s" in letters for letters in axes):
                found.append(f"{variant}/{example}")
    named = {f"{name}/{LAYOUTS[i % len(LAYOUTS)]}": None for i, name in enumerate(found)}
    named |= {f"{name}/packed": None for name in named if takes_pattern(name)}
    named |= dict.fromkeys((*states, *ASKED_LAYERS))
    return [pytest.param(name, marks=() if name in ASKED_LAYERS else pytest.mark.left_out) for name in named]


def takes_pattern(name: str) -> bool:
    """Whether keys travel in a ring: not where they are learned, or get a bias."""
    variant, example, _ = name.split("/")
    config = contract.examples(variant)[example]
    gathers = getattr(config, "memory_keys", 0) or getattr(config, "forget_gate", False)
    return variant in RING_LAYERS and not gathers


def packed(numbers: Any | None) -> dict[str, Any]:
    """The option of a call with documents: the numbers on a device, of its queries and of its keys."""
    return {} if numbers is None else {"pattern": patterns.Documents(numbers, numbers)}


@cache
def held_layer(name: str) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of a call without masks, its parameters and the gradient of its output; and what one device gives.

    With packed documents there are their `numbers`, too, which one device gets as a mask.
    """
    variant, example, _, *documents = name.split("/")
    config = contract.examples(variant)[example]
    names = [n for n in config.arguments() if n not in ("mask", "bias", "keep", "noise")]
    inputs, weights = random_inputs(config, names, b=2, t=16, s=16), weights_of(config)
    config = replace(config, dropout=0.0) if getattr(config, "dropout", 0) else config
    if not documents:
        want = bounded(config, inputs, weights)
        return {**inputs, **weights, "dy": cotangent(want["y"].shape)}, want
    numbers = np.array([[3] * 7 + [1] * 9, [2] * 4 + [5] + [0] * 11])
    mask = numbers[:, None, :, None] == numbers[:, None, None]
    want = bounded(config, inputs | {"mask": mask}, weights)
    return {**inputs, **weights, "numbers": numbers, "dy": cotangent(want["y"].shape)}, want
