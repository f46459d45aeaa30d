"""Tables of transforms: which of a tree's transforms every variant goes through, and which it does not, and why.

`test_transforms_<tree>.py` has two of them: TRANSFORMS, the name of each with what is asked of it; and EXEMPT, which
gives a (transform, variant) that is left out its reason. `make sync` writes both into docs/transforms.md.
"""

from collections.abc import Collection
from typing import Any

import pytest

from attn_np import contract

Exemptions = dict[tuple[str, str], str]
TREES = {"torch": "PyTorch", "jax": "Flax", "numpy": "NumPy"}


def cells(exempt: Exemptions, *transforms: str, variants: Collection[str] | None = None) -> Any:
    """A decorator that asks a test of each transform in every variant that is not exempt: `[transform-variant]`."""
    every = contract.variants() if variants is None else variants
    pairs = [(t, v) for t in transforms for v in every if (t, v) not in exempt]
    return pytest.mark.parametrize(("transform", "variant"), pairs, ids=[f"{t}-{v}" for t, v in pairs])
