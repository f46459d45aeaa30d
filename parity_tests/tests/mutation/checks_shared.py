"""A layer that shares the keys of another is that layer, if both have the same weights: in calls, steps, backwards."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from attn_np.contract.decoder import Config
from parity_tests.tests.mutation.calls import claim, refuses, same
from parity_tests.tests.witness import cotangent, weights_of

OWN = Config(d_model=6, num_heads=4, num_kv_heads=2, head_dim=4, value_head_dim=3, norm="rms", rotary_dim=2)
REAL = np.array([[True, False, True, True], [True, True, False, True]])


def twins(alias: str, config: Config) -> Any:
    """The copy's layer, and one that shares its keys."""
    package, params = import_module(f"{alias}.decoder"), weights_of(config)
    configs = config, replace(config, shared_kv=True)
    return tuple(
        package.DecoderAttention(c, dtype="float64", _values={n: params[n] for n in c.shapes()}).eval() for c in configs
    )


def shared_in_calls(alias: str) -> None:
    own, shares = twins(alias, OWN)
    rng = np.random.default_rng(2)
    x, mask = rng.normal(size=(2, 4, 6)), REAL[:, None, None]
    tape: dict[str, Any] = {}
    y = own(x, mask=mask, tape=tape)
    k, v = own.keys_and_values(x, mask=mask)
    k, v = (np.where(REAL[:, :, None, None], array, np.nan) for array in (k, v))
    shared: dict[str, Any] = {}
    z = shares(x, mask=mask, shared_k=k, shared_v=v, tape=shared)
    claim(same(y, z), "the same keys")
    want, later = own.vjp(tape, cotangent(y.shape)), shares.vjp(shared, cotangent(y.shape))
    first = own.vjp(tape, 0.0 * y, later.inputs["shared_k"], later.inputs["shared_v"])
    for name, grad in want.params.items():
        claim(np.array_equal(first.params[name] + later.params.get(name, 0.0), grad), f"d{name}")
    claim(not any(later.inputs[f"shared_{n}"][~REAL].any() for n in "kv"), "nothing comes back to what nobody sees")


def shared_in_steps(alias: str) -> None:
    """Of one length and of several, in all slots and in a ring."""
    x = np.random.default_rng(3).normal(size=(2, 4, 6))
    for window, pieces in ((None, (2, 1, 1)), ((1, None), (1,) * 4)):
        own, shares = twins(alias, replace(OWN, window=window))
        for valid in (None, REAL):
            cache, start = own.init_cache(2, 6), 0
            for n in pieces:
                marks = {} if valid is None else {"valid": valid[:, start : start + n]}
                y, cache = own.step(x[:, start : start + n], cache, **marks)
                z, after = shares.step(x[:, start : start + n], cache, **marks)
                asked = np.ones((2, n), bool) if valid is None else marks["valid"]
                claim(same(y[asked], z[asked]), f"step at {start} within {window}")
                claim(after is cache and not cache.spent, "a cache that is read stays as it is")
                start += n
    refuses(lambda: shares.init_cache(2, 6), ValueError, "decoder: expected a layer with keys of its own for init_cac")
    refuses(lambda: shares.step(x, own.init_cache(2, 6)), ValueError, "decoder: expected a cache that holds the 4 new")
    cache = own.step(x[:, :3], own.init_cache(2, 6))[1]
    refuses(lambda: shares.step(x[:, :3], cache), ValueError, "decoder: expected one new position at a time in a cach")
