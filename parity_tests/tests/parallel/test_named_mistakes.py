"""What the judge says of ports that make a mistake of a sequence on several devices: it names it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attn_np
from parity_tests import ParityError, assert_parity

Arrays = dict[str, np.ndarray]


def projected(p: Arrays, query: np.ndarray) -> list[np.ndarray]:
    return [np.einsum("btd,dhk->bthk", query, p[f"w_{n}"]) + p.get(f"b_{n}", 0) for n in "qkv"]


def output(p: Arrays, context: np.ndarray) -> np.ndarray:
    return np.einsum("bthv,hvo->bto", context, p["w_o"]) + p.get("b_o", 0)


def with_sinks(p: Arrays, query: np.ndarray, shards: int, once: bool) -> np.ndarray:
    """Attention with sinks by shards of the keys, whose results are merged."""
    q, k, v = projected(p, query)
    parts: list[Any] = []
    for i, part in enumerate(np.array_split(np.arange(q.shape[1]), shards)):
        sinks = p["sinks"] if i == 0 or not once else None
        parts.append(attn_np.attend(q, k[:, part], v[:, part], sinks=sinks, return_lse=True)[::2])
    return output(p, attn_np.merge(parts)[0])


def linear(p: Arrays, query: np.ndarray, shards: int, passed_on: bool) -> np.ndarray:
    """Causal linear attention by shards, each of which starts from the state of the one before."""
    q, k, v = projected(p, query)
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k))
    v = np.concatenate([v, np.ones_like(v[..., :1])], -1)
    y, state = np.zeros_like(v), 0.0
    for part in pieces(q.shape[1], shards):
        scores = np.tril(np.einsum("bthk,bshk->bhts", q[:, part], k[:, part]))
        y[:, part] = np.einsum("bhts,bshv->bthv", scores, v[:, part])
        if passed_on:
            y[:, part] += np.einsum("bthk,bhkv->bthv", q[:, part], state) if np.ndim(state) else 0
            state = state + np.einsum("bshk,bshv->bhkv", k[:, part], v[:, part])
    return output(p, y[..., :-1] / (y[..., -1:] + 1e-6))


def pieces(t: int, shards: int) -> list[slice]:
    """Equal shards, the last of which may be shorter."""
    size = -(-t // shards)
    return [slice(i, i + size) for i in range(0, t, size)]


PORTS: dict[str, tuple[Callable[..., np.ndarray], str, dict[str, Any], str]] = {
    "sinks": (with_sinks, "sinks", {}, "sinks counted once for each of {} shards"),
    "linear": (linear, "linear", {"causal": True}, "each of {} shards starts from an empty state"),
}


@pytest.mark.parametrize(("shards", "word"), [(2, "two"), (4, "four")])
@pytest.mark.parametrize("port", PORTS)
def test_a_mistake_is_named(port: str, shards: int, word: str) -> None:
    function, variant, fields, cause = PORTS[port]

    def right(params: Arrays, query: np.ndarray) -> np.ndarray:
        return function(params, query, shards, True)

    def wrong(params: Arrays, query: np.ndarray) -> np.ndarray:
        return function(params, query, shards, False)

    config = {"d_model": 12, "num_heads": 3, **fields}
    assert_parity(right, variant, **config)
    with pytest.raises(ParityError) as caught:
        assert_parity(wrong, variant, **config)
    assert f"cause: {cause.format(word)}\n" in str(caught.value)
