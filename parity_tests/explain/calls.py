"""Mistakes in how a layer is called, configured and filled: made in the arguments, the fields and the weights."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log
from typing import Any

import numpy as np

from parity_tests.judge.cases import Case, Drawn

Change = Callable[[Case, Drawn], tuple[Case, Drawn] | None]


def inputs(**changes: Callable[[Any], Any]) -> Change:
    """Other arguments; nothing where one of them was not given."""

    def change(case: Case, drawn: Drawn) -> tuple[Case, Drawn] | None:
        if not set(changes) <= set(drawn.inputs):
            return None
        held = dict(drawn.inputs)
        for name, how in changes.items():
            x = how(held.pop(name))
            if x is not None:
                held[name] = x
        return case, replace(drawn, inputs=held)

    return change


def fields(**changes: Any) -> Change:
    """Another config with parameters of the same shapes; nothing where it has no such field or the value already."""

    def change(case: Case, drawn: Drawn) -> tuple[Case, Drawn] | None:
        config, values = case.config, {}
        for name, value in changes.items():
            if name not in config.fields():
                return None
            values[name] = value(config) if callable(value) else value
            if values[name] == getattr(config, name) or values[name] is NotImplemented:
                return None
        other = replace(config, **values)
        return (replace(case, given=other), drawn) if other.shapes() == config.shapes() else None

    return change


def params(how: Callable[[str, np.ndarray, dict[str, int]], np.ndarray | None]) -> Change:
    """Other weights of the same shapes; nothing where none changes."""

    def change(case: Case, drawn: Drawn) -> tuple[Case, Drawn] | None:
        sizes, held = case.config.sizes(), dict(drawn.params)
        for name, x in drawn.params.items():
            new = how(name, x, sizes)
            if new is not None and new.shape == x.shape:
                held[name] = np.ascontiguousarray(new)
        same = all(np.array_equal(held[name], x) for name, x in drawn.params.items())
        return None if same else (case, replace(drawn, params=held))

    return change


def swapped(one: str, other: str) -> Change:
    """Two weights in each other's place."""

    def change(case: Case, drawn: Drawn) -> tuple[Case, Drawn] | None:
        held = dict(drawn.params)
        pairs = [(f"{kind}_{one}", f"{kind}_{other}") for kind in ("w", "b")]
        pairs = [(a, b) for a, b in pairs if a in held and b in held]
        if not pairs or any(held[a].shape != held[b].shape for a, b in pairs):
            return None
        for a, b in pairs:
            held[a], held[b] = held[b], held[a]
        return case, replace(drawn, params=held)

    return change


def split_the_other_way(name: str, x: np.ndarray, sizes: dict[str, int]) -> np.ndarray | None:
    """A projection whose width was split as (k h): the head runs fastest."""
    if name not in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v") or "h" not in sizes:
        return None
    *lead, h, k = x.shape
    return np.swapaxes(x.reshape(*lead, k, h), -1, -2)


def merged_the_other_way(name: str, x: np.ndarray, sizes: dict[str, int]) -> np.ndarray | None:
    """An output projection that reads its input as (v h)."""
    if name != "w_o" or x.ndim != 3:
        return None
    h, v, d = x.shape
    return x.reshape(v, h, d).transpose(1, 0, 2)


def split_alone(letter: str) -> Callable[[str, np.ndarray, dict[str, int]], np.ndarray | None]:
    """One projection whose width was split as (k h), the others as they should be."""
    names = (f"w_{letter}", f"b_{letter}")
    return lambda name, x, sizes: split_the_other_way(name, x, sizes) if name in names else None


def joint(how: Callable[..., Sequence[np.ndarray] | None], *names: str) -> Change:
    """Weights that come from one joint one, read in another way; their biases alike.

    Args:
        how: from the parts, each `d heads width`, to those that are read in their place; None where it cannot be.
        names: which, without the prefix.
    """

    def change(case: Case, drawn: Drawn) -> tuple[Case, Drawn] | None:
        held = dict(drawn.params)
        for kind in ("w", "b"):
            keys = [f"{kind}_{name}" for name in names]
            if kind == "w" and any(key not in held or held[key].ndim != 3 for key in keys):
                return None
            if any(key not in held for key in keys):
                continue
            parts = [held[key] if kind == "w" else held[key][None] for key in keys]
            if len({len(part) for part in parts}) > 1 or parts[0].shape[1] % parts[1].shape[1]:
                return None  # of inputs of different widths
            read = how(*parts)
            if read is None or any(new.shape != part.shape for new, part in zip(read, parts, strict=True)):
                return None
            held |= {
                key: np.ascontiguousarray(new if kind == "w" else new[0]) for key, new in zip(keys, read, strict=True)
            }
        same = all(np.array_equal(held[name], x) for name, x in drawn.params.items())
        return None if same else (case, replace(drawn, params=held))

    return change


def side_by_side(*parts: np.ndarray) -> np.ndarray:
    """One weight `d n` of several `d heads width`."""
    return np.concatenate([x.reshape(len(x), -1) for x in parts], 1)


def cut(flat: np.ndarray, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The inverse of `side_by_side`."""
    ends = np.cumsum([0, *(x[0].size for x in parts)])
    return [flat[:, a:b].reshape(x.shape) for a, b, x in zip(ends, ends[1:], parts, strict=False)]


def by_group(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
    """Joint `d (g (r + 2) k)`: the queries of a group, its key and its value; with one query each, head by head."""
    d, g = len(q), k.shape[1]
    groups = [x.reshape(d, g, -1, x.shape[-1]) for x in (q, k, v)]
    return [x.reshape(d, g, -1) for x in groups]


def read_by_group(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray] | None:
    """What is read group by group of a joint weight that has all queries first, then all keys, then all values."""
    groups = by_group(q, k, v)
    flat = side_by_side(q, k, v).reshape(len(q), k.shape[1], -1)
    ends = np.cumsum([0, *(x.shape[-1] for x in groups)])
    return [flat[:, :, a:b].reshape(x.shape) for a, b, x in zip(ends, ends[1:], (q, k, v), strict=False)]


def read_side_by_side(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray] | None:
    """What is read as all queries, all keys, all values of a joint weight that is laid out group by group."""
    flat = np.concatenate(by_group(q, k, v), 2).reshape(len(q), -1)
    return cut(flat, (q, k, v))


def keys_of_latents(*, first: int) -> Callable[..., list[np.ndarray]]:
    """Keys and values of latents from one weight `z h (q + v)`, with the values first or with the heads fastest."""

    def how(k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        both = np.concatenate([k, v], 2)
        if not first:
            both = np.swapaxes(both.reshape(len(k), both.shape[2], k.shape[1]), 1, 2)
            return [both[..., : k.shape[2]], both[..., k.shape[2] :]]
        return [both[..., v.shape[2] :], both[..., : v.shape[2]]]

    return how


def turned_part_first(name: str, x: np.ndarray, sizes: dict[str, int]) -> np.ndarray | None:
    """Queries of latent attention whose rotated part comes first."""
    if name != "w_q" or not {"q", "y"} <= sizes.keys():
        return None
    return np.concatenate([x[..., sizes["y"] :], x[..., : sizes["y"]]], -1)


def other_heads(count: Callable[[int, int], float]) -> Change:
    """As many numbers dealt out to another number of heads; `count` gives it from that of heads and their width."""

    def change(case: Case, drawn: Drawn) -> tuple[Case, Drawn] | None:
        config, sizes = case.config, case.config.sizes()
        names = {"w_q", "w_k", "w_v", "w_o"}
        if not {"num_heads", "head_dim"} <= set(config.fields()) or not names <= drawn.params.keys():
            return None
        h, k, v = sizes["h"], sizes.get("k"), sizes.get("v")
        n = count(h, k or 0)
        if k != v or sizes.get("g", h) != h or n != int(n) or n in (0, h) or not k or h * k % n:
            return None
        n, width = int(n), h * k // int(n)
        values = {"num_heads": n, "head_dim": width}
        values |= {x: n for x in ("num_kv_heads",) if getattr(config, x, None) is not None}
        values |= {x: width for x in ("value_head_dim",) if getattr(config, x, None) is not None}
        try:
            other = replace(config, **values)
        except ValueError:
            return None
        if getattr(config, "scale", None) is not None or other.shapes().keys() != config.shapes().keys():
            return None
        if any(np.prod(shape) != drawn.params[name].size for name, shape in other.shapes().items()):
            return None
        held = {name: drawn.params[name].reshape(shape) for name, shape in other.shapes().items()}
        inputs = {n: x for n, x in drawn.inputs.items() if x.ndim != 4 or x.shape[1] == 1}
        return (replace(case, given=other), replace(drawn, params=held)) if inputs == drawn.inputs else None

    return change


def unscaled_positions(case: Case, drawn: Drawn) -> tuple[Case, Drawn] | None:
    """Plain rotary positions where the config scales them."""
    if getattr(case.config, "rope_scaling", None) is None:
        return None
    names = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "short_factor")
    names = ("rope_scaling", "rope_scaling_factor", "original_max_positions", "long_factor", *names)
    values = {name: None for name in names if name in case.config.fields()}
    values |= {"yarn_truncate": True} if "yarn_truncate" in case.config.fields() else {}
    try:
        return replace(case, given=replace(case.config, **values)), drawn
    except ValueError:
        return None


def without_mscale(config: Any) -> Any:
    """No scale of its own, where the config's is 1/sqrt(width) times the square of YaRN's mscale."""
    if config.scale is None or getattr(config, "rope_scaling", None) != "yarn" or "k" not in config.sizes():
        return NotImplemented
    mscale = 0.1 * log(config.rope_scaling_factor) + 1
    squared = mscale**2 * config.sizes()["k"] ** -0.5
    return None if f"{config.scale:.6g}" == f"{squared:.6g}" else NotImplemented


def transposed(*names: str) -> Callable[[str, np.ndarray, dict[str, int]], np.ndarray | None]:
    def how(name: str, x: np.ndarray, sizes: dict[str, int]) -> np.ndarray | None:
        if name.rpartition(".")[2] not in names:
            return None
        flat = x.reshape(x.shape[0], -1) if name.endswith(("w_q", "w_k", "w_v", "w_x")) else x.reshape(-1, x.shape[-1])
        return flat.T.reshape(x.shape) if flat.shape[0] == flat.shape[1] else None

    return how


def gates(order: tuple[int, int, int]) -> Callable[[str, np.ndarray, dict[str, int]], np.ndarray | None]:
    def how(name: str, x: np.ndarray, sizes: dict[str, int]) -> np.ndarray | None:
        return x[list(order)] if name.rpartition(".")[2] in ("w_x", "w_h", "b_x", "b_h") and len(x) == 3 else None

    return how


def interleaved(name: str, x: np.ndarray, sizes: dict[str, int]) -> np.ndarray | None:
    """A joint projection read as (h p k), q k v of one head next to each other, where it is (p h k)."""
    if name not in ("w_qkv", "b_qkv") or x.ndim < 3:
        return None
    *lead, p, h, k = x.shape
    return np.moveaxis(x.reshape(*lead, h, p, k), -2, -3)


def without(*names: str) -> Callable[[str, np.ndarray, dict[str, int]], np.ndarray | None]:
    return lambda name, x, sizes: np.zeros_like(x) if name.rpartition(".")[2] in names else None


def moved_window(left: int, right: int) -> Callable[[Any], Any]:
    """The window some keys wider on each side."""

    def how(config: Any) -> Any:
        if config.window is None:
            return NotImplemented
        sides = zip(config.window, (left, right), strict=True)
        new = tuple(None if side is None else side + by for side, by in sides)
        return NotImplemented if any(side is not None and side < 0 for side in new) else new

    return how


def over_queries(x: np.ndarray) -> np.ndarray | None:
    """A padding mask of the keys spread over the queries."""
    t, s = x.shape[-2:]
    if t == s:
        return np.swapaxes(x, -1, -2)
    return None


CALLS: tuple[tuple[str, str, Change], ...] = (
    (
        "mask with the opposite meaning",
        "True means may attend here: pass ~mask, as torch.nn.MultiheadAttention's masks mean the opposite",
        inputs(mask=lambda x: ~x),
    ),
    ("mask not passed on", "hand the mask to the attention: keys that it hides are seen", inputs(mask=lambda x: None)),
    (
        "mask with queries and keys exchanged",
        "let the mask's last axis be the keys: transpose its last two axes",
        inputs(mask=over_queries),
    ),
    (
        "bias not passed on",
        "add the bias to the scores, after the scale and before the mask",
        inputs(bias=lambda x: None),
    ),
    ("bias with the opposite sign", "add the bias to the scores; it is subtracted", inputs(bias=lambda x: -x)),
    (
        "bias with queries and keys exchanged",
        "let the bias' last axis be the keys: transpose its last two axes",
        inputs(bias=over_queries),
    ),
    ("dropout mask not used", "drop the weights that keep marks False", inputs(keep=lambda x: None)),
    (
        "dropout mask with the opposite meaning",
        "True means kept here: pass ~keep",
        inputs(keep=lambda x: ~x),
    ),
    (
        "keys taken from the queries' input",
        "project the keys from key, not from query",
        inputs(key=lambda x: None),
    ),
    ("causal, where it should not be", "build it with causal=False", fields(causal=True)),
    ("not causal, where it should be", "hide the keys after a query's own position", fields(causal=False)),
    ("window ignored", "hide the keys outside of the window", fields(window=None)),
    (
        "window one key too wide on the left",
        "count the query's own key once: left=2 sees two keys before it and itself",
        fields(window=moved_window(1, 0)),
    ),
    (
        "window one key too narrow on the left",
        "count the query's own key extra: left=2 sees two keys before it and itself",
        fields(window=moved_window(-1, 0)),
    ),
    (
        "window one key too wide on the right",
        "right=1 sees one key after the query's own",
        fields(window=moved_window(0, 1)),
    ),
    (
        "window one key too narrow on the right",
        "right=1 sees one key after the query's own",
        fields(window=moved_window(0, -1)),
    ),
    ("scores not scaled", "divide the scores by sqrt(head_dim), or pass scale=1.0 to ours", fields(scale=1.0)),
    (
        "scores scaled, where they should not be",
        "leave the scale out, or pass scale=None to ours",
        fields(scale=lambda c: None if c.scale == 1.0 else NotImplemented),
    ),
    (
        "no mscale squared in the scale of the scores",
        "multiply 1/sqrt(width) by the square of mscale, 0.1 ln(factor) + 1, as DeepSeek's models with YaRN do",
        fields(scale=without_mscale),
    ),
    (
        "scale of the config ignored: 1/sqrt(width) of a head",
        "multiply the scores by the scale of the config, or pass scale=None to ours",
        fields(scale=lambda c: None if c.scale != 1.0 and without_mscale(c) is NotImplemented else NotImplemented),
    ),
    (
        "scaling of the rotary positions left out",
        "scale the frequencies as rope_scaling says, or build ours without it",
        unscaled_positions,
    ),
    (
        "scaled by the model's width",
        "divide by sqrt(head_dim), the width of one head, not of the model",
        fields(scale=lambda c: c.sizes()["d"] ** -0.5 if "d" in c.sizes() else NotImplemented),
    ),
    ("softcap ignored", "pass the scores through softcap * tanh(scores / softcap)", fields(softcap=None)),
    (
        "softmax over the queries",
        "normalise over the keys: softmax over the last axis of the scores (dim=-1)",
        fields(normalize_over="queries"),
    ),
    (
        "softmax over the keys, where it should be over the queries",
        "normalise over the queries: softmax over the last axis but one (dim=-2)",
        fields(normalize_over="keys"),
    ),
    ("weights of queries and keys exchanged", "put w_q in the place of w_k and the other way round", swapped("q", "k")),
    (
        "weights of queries and values exchanged",
        "put w_q in the place of w_v and the other way round",
        swapped("q", "v"),
    ),
    ("weights of keys and values exchanged", "put w_k in the place of w_v and the other way round", swapped("k", "v")),
    (
        "weights of the two norms exchanged",
        "give the norm of the queries its own weight, and the norm of the keys its own",
        lambda case, drawn: (
            swapped("q_norm", "k_norm")(case, drawn) or swapped("q_norm_heads", "k_norm_heads")(case, drawn)
        ),
    ),
    (
        "heads split the other way",
        "split the projected width as (heads, head_dim): reshape(b, t, heads, head_dim), the head's width fastest",
        params(split_the_other_way),
    ),
    *(
        (
            f"heads of the {whose} alone split the other way",
            "split this width, too, as (heads, head_dim): its pattern is '(h k)', the width fastest, not '(k h)'",
            params(split_alone(letter)),
        )
        for letter, whose in (("q", "queries"), ("k", "keys"), ("v", "values"))
    ),
    *(
        (
            f"another number of heads: {words}",
            "take num_heads from the config: the width is the same, its numbers are dealt out to other heads",
            other_heads(count),
        )
        for words, count in (
            ("twice as many", lambda h, k: 2 * h),
            ("half as many", lambda h, k: h / 2),
            ("one", lambda h, k: 1),
            ("one more", lambda h, k: h + 1),
            ("one less", lambda h, k: h - 1),
            ("as many as a head is wide", lambda h, k: k),
        )
    ),
    (
        "joint projection of queries, keys and values read head by head, or group by group",
        "split the joint projection as all queries, all keys, all values; GPT-NeoX keeps those of a head together",
        joint(read_by_group, "q", "k", "v"),
    ),
    (
        "joint projection of queries, keys and values read as three parts where heads, or groups, are together",
        "split the joint projection as (head, q k v, width), and for shared heads as (group, queries k v, width)",
        joint(read_side_by_side, "q", "k", "v"),
    ),
    (
        "joint projection of keys and values viewed as (width, heads)",
        "view the joint projection of the latents as (heads, nope_dim + value_head_dim), the width fastest",
        joint(keys_of_latents(first=0), "uk", "uv"),
    ),
    (
        "values before the keys in the joint projection of the latents",
        "split the joint projection of the latents in the order keys, values",
        joint(keys_of_latents(first=1), "uk", "uv"),
    ),
    (
        "rotated part of the queries first",
        "split queries in the order nope_dim, rope_dim: the rotated part is the last",
        params(turned_part_first),
    ),
    (
        "heads merged the other way",
        "move the head axis back before merging: transpose to b t h v, then reshape(b, t, h * v)",
        params(merged_the_other_way),
    ),
    *(
        (
            f"weight {name} transposed",
            "transpose the square weight: torch.nn.Linear keeps [out, in], Flax and Keras [in, out]",
            params(transposed(name)),
        )
        for name in ("w_q", "w_k", "w_v", "w_o")
    ),
    (
        "all weights transposed",
        "transpose the square weights: torch.nn.Linear keeps [out, in], Flax and Keras [in, out]",
        params(transposed("w_q", "w_k", "w_v", "w_o")),
    ),
    (
        "joint projection read head by head",
        "split the joint projection as (q k v, head, width); some models keep q, k and v of one head together",
        params(interleaved),
    ),
    *(
        (f"bias {name} left out", f"add the bias {name} after its product", params(without(name)))
        for name in ("b_q", "b_k", "b_v", "b_o", "b_x", "b_h", "b_qkv")
    ),
    (
        "all biases left out",
        "add the biases of the projections",
        params(without("b_q", "b_k", "b_v", "b_o", "b_qkv", "b_x", "b_h")),
    ),
    ("gates in the order z r n", "reorder the gates: torch keeps r z n, Keras z r h", params(gates((1, 0, 2)))),
    ("gates in the order r n z", "reorder the gates to r z n", params(gates((0, 2, 1)))),
    ("gates in the order n z r", "reorder the gates to r z n", params(gates((2, 1, 0)))),
)
