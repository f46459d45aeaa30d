"""Copies of the reference: the rules for a copy of attn_np that is imported under another name."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attn_np import ops
from attn_np.attention import masks
from attn_np.normalizers import sparse
from attn_np.ops import vjp
from parity_tests.bounds.error_array import FUNCTIONS, ErrArray, Flag, lift, plain
from parity_tests.bounds.precision import FUNCTION, promised


def adopt(tree: str) -> None:
    """Give the rules to a copy of attn_np that is imported under another name.

    A function whose body was edited in the copy has no rule: the body itself then runs on error-carrying
    arrays, with wider bounds.
    """
    for whole in (masks, ops, sparse, vjp):
        copy = sys.modules.get(whole.__name__.replace("attn_np", tree, 1))
        if copy is None:  # not edited: the copy uses the original
            continue
        for name, function in vars(whole).items():
            if getattr(function, "__module__", "") == whole.__name__ and function in FUNCTIONS:
                other = getattr(copy, name)
                same = code_of(plain(other)) == code_of(plain(function))
                edited = partial(like_softmax, plain(other)) if name == "softmax" else plain(other)
                FUNCTIONS[other] = FUNCTIONS[function] if same else edited


def like_softmax(body: Callable[..., Any], scores: Any, allowed: Any = None, axis: int = -1) -> ErrArray:
    """A softmax with a mistake in it: errors of the scores act on the weights as factors, as in every such form.

    The operations of its body one by one would know nothing of a weight that is much smaller than the exponentials.
    """
    s, p = lift(scores), promised()
    allowed = allowed.value if isinstance(allowed, Flag) else allowed
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        v, narrow = body(s.v, allowed, axis), body(s.v.astype(ops.DTYPES[p.work]), allowed, axis)
        v = np.where(np.isfinite(narrow), v, narrow)  # what overflows does so in the candidate's type
        n = max(s.shape[axis], 1)
        far = np.max(np.abs(np.where(np.isfinite(s.v), s.v, 0.0)), initial=0.0, axis=axis, keepdims=True)
        loose = np.max(s.b, initial=0.0, axis=axis, keepdims=True)
        relative = np.expm1(2 * loose + 2 * p.u * far) + p.gamma(n) + (4 + FUNCTION) * p.u
        return ErrArray(v, np.where(np.isfinite(v), np.abs(v) * relative + 4 * p.eta, 0.0))


def disown(tree: str) -> None:
    """Forget a copy that is no longer needed."""
    for function in [f for f in FUNCTIONS if getattr(f, "__module__", "").partition(".")[0] == tree]:
        del FUNCTIONS[function]


def code_of(function: Any) -> tuple[Any, ...]:
    """What a function does, wherever its text stands."""

    def content(code: Any) -> tuple[Any, ...]:
        consts = tuple(content(c) if hasattr(c, "co_code") else c for c in code.co_consts)
        return code.co_code, consts, code.co_names, code.co_varnames

    return content(function.__code__)
