"""Layers with a state give one result in each form, whatever stands in padding, and in steps."""

from dataclasses import replace
from typing import Any

import pytest

from parity_tests.tests.forms import forms_apart, padding_seen, steps_apart
from parity_tests.tests.inputs import TREES
from parity_tests.tests.variants import test_delta as delta
from parity_tests.tests.variants import test_gated_delta as gated_delta
from parity_tests.tests.variants import test_gla as gla
from parity_tests.tests.variants import test_kda as kda
from parity_tests.tests.variants import test_linear as linear
from parity_tests.tests.variants import test_mamba2 as mamba2
from parity_tests.tests.variants import test_retention as retention

CONFIGS: dict[str, tuple[Any, ...]] = {
    "delta": (delta.FORMS,),
    "gated_delta": (gated_delta.FORMS, gated_delta.MIXED),
    "gla": (gla.FORMS,),
    "kda": (kda.FORMS, kda.MIXED),
    "linear": (linear.FORMS, replace(linear.FORMS, normalize=False)),
    "mamba2": (mamba2.FORMS, mamba2.MIXED),
    "retention": (retention.FORMS, retention.TURNED, retention.EXAMPLES["lightning"]),
}


@pytest.mark.parametrize(("form", "size"), [("parallel", 1), ("chunked", 1), ("chunked", 9), ("auto", 3), ("auto", 9)])
@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("variant", CONFIGS)
def test_forms_agree(variant: str, name: str, form: str, size: int) -> None:
    """Chunks of one position, chunks that do not divide the length, one chunk longer than it."""
    for config in CONFIGS[variant]:
        assert not forms_apart(TREES[name], replace(config, form="recurrent"), form=form, chunk_size=size)


@pytest.mark.parametrize("form", ["auto", "parallel", "recurrent", "chunked"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("variant", CONFIGS)
def test_padding_is_not_there_and_steps_are_the_full_pass(variant: str, name: str, form: str) -> None:
    """Padding takes no time either: what fades between two positions does not know of padding between them."""
    for config in CONFIGS[variant]:
        config = replace(config, form=form, chunk_size=3)
        assert not padding_seen(TREES[name], config)
        assert not steps_apart(TREES[name], config)
