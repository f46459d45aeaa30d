"""What the functions that stand in for those of PyTorch and JAX must do: the numbers of the whole reference."""

from functools import cache
from typing import Any

import numpy as np

import attn_np
from attn_np import drop_in
from parity_tests.tests.mutation.calls import Parts, claim, claim_same, refuses

Call = tuple[tuple[Any, ...], dict[str, Any], tuple[int, ...]]  # arguments, options and the shape of the output


@cache
def calls(name: str) -> tuple[Call, ...]:
    """Calls that use every argument; one query sees nothing."""
    rng = np.random.default_rng(3)

    def arrays(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        return tuple(rng.normal(size=shape) for shape in shapes)

    mask = rng.random((2, 1, 5, 7)) < 0.6
    mask[0, :, 2] = False
    if name == "scaled_dot_product_attention":
        whole, nested = ((2, 4, 5, 3), (2, 2, 7, 3), (2, 2, 7, 4)), ((2, 3, 4, 5, 3), (3, 1, 7, 3), (2, 1, 1, 7, 4))
        keep = rng.random((2, 3, 4, 5, 7)) < 0.75
        return (
            ((*arrays(*whole), mask), {"enable_gqa": True, "scale": 0.375}, (2, 4, 5, 4)),
            ((*arrays(*whole), *arrays((4, 1, 7))), {"enable_gqa": True}, (2, 4, 5, 4)),
            (arrays(*nested), {"is_causal": True, "dropout_p": 0.25, "keep": keep}, (2, 3, 4, 5, 4)),
            ((*arrays(*nested), *arrays((2, 1, 4, 1, 7))), {}, (2, 3, 4, 5, 4)),
            ((*arrays(*nested), keep[:, :, :1]), {}, (2, 3, 4, 5, 4)),
            (arrays((1, 5, 3), (4, 5, 3), (4, 5, 3)), {"is_causal": True}, (4, 5, 3)),
            (arrays((5, 3), (7, 3), (7, 4)), {}, (5, 4)),
        )
    whole, lengths = ((2, 5, 4, 3), (2, 7, 2, 3), (2, 7, 2, 3)), {"query_seq_lengths": np.array([4, 5])}
    lengths |= {"key_value_seq_lengths": np.array([7, 1])}
    options: dict[str, Any] = {"scale": 0.375, "local_window_size": (1, 2), "implementation": "xla"}
    return (
        ((*arrays(*whole, (1, 4, 5, 7)), mask), options | lengths, (2, 5, 4, 3)),
        ((*arrays(*whole), None, mask), {}, (2, 5, 4, 3)),
        (arrays((2, 5, 4, 3), (2, 5, 4, 3), (2, 5, 4, 3)), {"is_causal": True, "local_window_size": 2}, (2, 5, 4, 3)),
        (arrays((5, 4, 3), (7, 2, 3), (7, 2, 3)), {"is_causal": True}, (5, 4, 3)),
    )


@cache
def expected(name: str) -> tuple[tuple[np.ndarray, dict[str, Any]], ...]:
    """Output and gradients of each call by the whole reference."""
    function, found = getattr(drop_in, name), []
    for arguments, options, shape in calls(name):
        y, pull = attn_np.value_and_vjp(function, *arguments, **options)
        found.append((y, pull(np.random.default_rng(5).normal(size=shape)).inputs))
    return tuple(found)


def stood_in(name: str, alias: str) -> None:
    """The numbers and the gradients of every call, to the bit, and what is refused."""
    parts = Parts(alias)
    function = getattr(parts, name)
    for (arguments, options, shape), (y, gradients) in zip(calls(name), expected(name), strict=True):
        claim(y.shape == shape, "the shape of the output")
        claim_same({"y": function(*arguments, **options)}, {"y": drop_in_plainly(name, arguments, options)}, "y alone")
        found, pull = parts.value_and_vjp(function, *arguments, **options)
        claim_same({"y": found}, {"y": y}, "y")
        claim_same(pull(np.random.default_rng(5).normal(size=shape)).inputs, gradients, "gradients")
    q = calls(name)[-1][0][0]
    refuses(lambda: function(q, q, q, is_causal="yes"), ValueError, "is_causal to be True or False")


def drop_in_plainly(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> np.ndarray:
    """The output by the whole reference, without a tape."""
    return getattr(drop_in, name)(*arguments, **options)
