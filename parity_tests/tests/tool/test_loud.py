"""Scores that are so large that `exp` of them overflows: what they alone show of a port."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from parity_tests import ParityError, assert_parity


def scores_of(query: Any, key: Any) -> Any:
    return query @ key.mT / query.shape[-1] ** 0.5


def right(query: Any, key: Any, value: Any) -> Any:
    return scores_of(query, key).softmax(-1) @ value


def unsubtracted(query: Any, key: Any, value: Any) -> Any:
    weights = torch.exp(scores_of(query, key))
    return weights / weights.sum(-1, keepdim=True) @ value


def unsubtracted_in_numpy(query: Any, key: Any, value: Any) -> Any:
    weights = np.exp(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]))
    return weights / weights.sum(-1, keepdims=True) @ value


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("port", "framework"), [(unsubtracted, "torch"), (unsubtracted_in_numpy, "numpy")])
def test_a_softmax_without_its_largest_score_subtracted_is_named(port: Callable[..., Any], framework: str) -> None:
    with pytest.raises(ParityError) as error:
        assert_parity(port, "dot_product", framework=framework)
    words = str(error.value)
    assert "cause: softmax without subtracting the maximum" in words
    assert "times as large: `exp` of its largest score overflows" in words


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_right_port_agrees(dtype: str) -> None:
    assert_parity(right, "dot_product", framework="torch", dtype=dtype)
