"""Graded exercises of lesson 7: the KV cache."""

import numpy as np

from attn_np.ops import einsum, softmax
from parity_tests.exercises._exercise import Exercise, arrays, normal


def cached_step(q, k, v, k_cache, v_cache):
    keys = np.concatenate([k_cache, k[None]], axis=0)
    values = np.concatenate([v_cache, v[None]], axis=0)
    p = softmax(einsum("k,sk->s", q, keys) / np.sqrt(keys.shape[1]))
    return einsum("s,sv->v", p, values), keys, values


def grouped_attention(q, k, v):
    r = len(q) // len(k)
    k, v = np.repeat(k, r, axis=0), np.repeat(v, r, axis=0)
    p = softmax(einsum("htk,hsk->hts", q, k) / np.sqrt(k.shape[-1]))
    return einsum("hts,hsv->htv", p, v)


def cache_numbers(layers, groups, head_dim, length):
    return 2 * layers * groups * head_dim * length


def read(q, keys, values):
    return einsum("s,sv->v", softmax(einsum("k,sk->s", q, keys) / np.sqrt(keys.shape[1])), values)


def step_with(answer):
    """A step whose caches are right and whose answer is another."""
    return lambda q, k, v, k_cache, v_cache: (
        answer(q, k, v, k_cache, v_cache, *cached_step(q, k, v, k_cache, v_cache)[1:]),
        *cached_step(q, k, v, k_cache, v_cache)[1:],
    )


def for_heads(index, scaled=True):
    """Grouped attention whose heads take other groups: `index` of the numbers of heads and groups."""

    def layer(q, k, v):
        at = index(len(q), len(k))
        return grouped_attention(q if scaled else q * np.sqrt(k.shape[-1]), k[at], v[at])

    return layer


def draw_step(rng):
    return arrays(q="k", k="k", v="v", k_cache="sk", v_cache="sv")(rng)


def draw_groups(rng):
    return {"q": normal(rng, 6, 5, 3), "k": normal(rng, 2, 7, 3), "v": normal(rng, 2, 7, 4)}


EXERCISES = (
    Exercise(
        "7.4",
        (
            "One step of decoding with one head. Append the new word's key `k` (k) and value `v` (v) to the caches, "
            "(s, k) and (s, v), and let its query `q` (k) read them: `(y, keys, values)`, `y` (v) and both caches "
            "with the new word behind."
        ),
        cached_step,
        draw_step,
        {
            "a query reads before its own key is added": step_with(
                lambda q, k, v, k_cache, v_cache, keys, values: read(q, k_cache, v_cache)
            ),
            "the word put before the cache": lambda q, k, v, k_cache, v_cache: (
                cached_step(q, k, v, k_cache, v_cache)[0],
                np.concatenate([k[None], k_cache], axis=0),
                np.concatenate([v[None], v_cache], axis=0),
            ),
            "scale missing": step_with(
                lambda q, k, v, k_cache, v_cache, keys, values: read(q * np.sqrt(keys.shape[1]), keys, values)
            ),
            "the oldest word dropped from the cache": lambda q, k, v, k_cache, v_cache: cached_step(
                q, k, v, k_cache[1:], v_cache[1:]
            ),
            "the caches returned as they were": lambda q, k, v, k_cache, v_cache: (
                cached_step(q, k, v, k_cache, v_cache)[0],
                k_cache,
                v_cache,
            ),
            "the new key in the place of the query": step_with(
                lambda q, k, v, k_cache, v_cache, keys, values: read(k, keys, values)
            ),
            "the plain average of the values": step_with(
                lambda q, k, v, k_cache, v_cache, keys, values: np.sum(values, axis=0) / len(values)
            ),
        },
    ),
    Exercise(
        "7.5",
        (
            "Grouped-query attention: `q` (h, t, k) has more heads than `k` (g, s, k) and `v` (g, s, v); neighbouring "
            "heads share a group. The answers, (h, t, v)."
        ),
        grouped_attention,
        draw_groups,
        {
            "shared heads tiled": for_heads(lambda h, g: np.arange(h) % g),
            "one key/value head for all query heads": for_heads(lambda h, g: np.zeros(h, int)),
            "shared heads in reverse order": for_heads(lambda h, g: np.arange(h)[::-1] // (h // g)),
            "scale missing": for_heads(lambda h, g: np.arange(h) // (h // g), scaled=False),
            "groups added up: one answer for each group": lambda q, k, v: np.sum(
                grouped_attention(q, k, v).reshape(len(k), len(q) // len(k), q.shape[1], v.shape[2]), axis=1
            ),
            "scale missing, and shared heads tiled": for_heads(lambda h, g: np.arange(h) % g, scaled=False),
        },
    ),
    Exercise(
        "7.6",
        "How many numbers does the cache of a text of `length` words hold?",
        cache_numbers,
        lambda rng: {"layers": 32, "groups": 8, "head_dim": 128, "length": 1000 + int(rng.integers(9))},
        {
            "keys without values": lambda layers, groups, head_dim, length: layers * groups * head_dim * length,
            "one layer alone": lambda layers, groups, head_dim, length: 2 * groups * head_dim * length,
            "one group alone": lambda layers, groups, head_dim, length: 2 * layers * head_dim * length,
            "bytes in 16 bits, not numbers": lambda layers, groups, head_dim, length: (
                4 * layers * groups * head_dim * length
            ),
            "a square of scores: the map is not kept": lambda layers, groups, head_dim, length: (
                layers * groups * length * length
            ),
            "one word alone": lambda layers, groups, head_dim, length: 2 * layers * groups * head_dim,
        },
    ),
)
