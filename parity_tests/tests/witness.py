"""For the tests of one variant: does an independent computation give what the reference gives, within its bound?

Every `test_<variant>.py` has a function `witness(config, inputs, params)`: the paper's formula one number at a time,
which imports nothing of ours. It gives float64 arrays by the names of the outputs: "y", "out1" and so on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from inspect import Parameter, Signature
from math import exp, tanh
from typing import Any

import numpy as np
import torch
from flax import nnx

from attn_np.contract import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision_of
from parity_tests.judge.cases import Case, Drawn, draw
from parity_tests.judge.judging import compare, reference
from parity_tests.tests.inputs import Arrays, Tree, random_inputs


def weights_of(config: Config, seed: int = 0) -> Arrays:
    """Random float64 parameters, none of them near 0 on the whole, so that leaving one out shows."""
    rng = np.random.default_rng(seed)
    fans = config.fans()
    return {name: rng.normal(size=shape) * 1.5 * fans[name] ** -0.5 for name, shape in config.shapes().items()}


def signature_of(config: Config, whole: bool) -> Signature:
    """Of a layer as a function: its weights, then what it is called with, all arguments or those that it needs."""
    takes = {n: x for n, x in config.arguments().items() if whole or not (x.optional or x.falls_back_to)}
    params = [Parameter("params", Parameter.POSITIONAL_OR_KEYWORD)] if config.shapes() else []
    for name, arg in takes.items():
        default = None if arg.optional or arg.falls_back_to else Parameter.empty
        params.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default))
    return Signature(sorted(params, key=lambda x: x.default is not Parameter.empty))


def bind_call(signature: Signature, args: Any, named: Any) -> tuple[Arrays, Arrays, str]:
    """Of a call of such a function: its arrays, its weights, and their dtype."""
    given = {name: x for name, x in signature.bind(*args, **named).arguments.items() if x is not None}
    weights = given.pop("params", {})
    kind = next(x.dtype.name for x in (*given.values(), *weights.values()) if x.dtype.kind == "f")
    return given, weights, kind


def cotangent(shape: tuple[int, ...]) -> np.ndarray:
    """The gradient of y that `bounded` uses."""
    return Drawn({}, {}, 0).cotangent(shape, "float64")


def bounded(
    config: Config,
    inputs: Arrays,
    weights: Arrays | None = None,
    dtype: str = "float64",
    pulled: Mapping[str, np.ndarray] | None = None,
) -> dict[str, ErrArray]:
    """What the reference gives, each number with the bound for a computation in `dtype`.

    `pulled` are the gradients of the outputs by name, `cotangent` by default.

    Under "y", "out1" (the weights, where a layer returns them) and, for the gradients, "d" + name.
    """
    case = Case(config.variant, "", "", dtype, given=config)
    found, grads = reference(case, Drawn(inputs, weights or {}, 0, pulled or {}), {}, precision_of(dtype))
    return found | grads


def torch_gradients(y: torch.Tensor, **leaves: torch.Tensor) -> Arrays:
    """By PyTorch's autograd, with the cotangent of `bounded`, under "d" + name."""
    grads = torch.autograd.grad(y, list(leaves.values()), torch.from_numpy(cotangent(tuple(y.shape))))
    return {f"d{name}": grad.numpy() for name, grad in zip(leaves, grads, strict=True)}


def ratio(got: Any, want: ErrArray) -> float:
    """Largest error/bound; infinite where shapes differ or where there is no finite bound to hold anyone to."""
    return compare(np.asarray(got, np.float64), want)["ratio"] if np.isfinite(want.b).all() else float("inf")


def each_row(
    config: Any, inputs: Arrays, words: Sequence[np.ndarray], scores: tuple[int, ...]
) -> tuple[Any, list[list[Any]]]:
    """The batch rows of a call as lists of numbers: the words, then mask, bias and keep-mask spread over the scores.

    Without a keep-mask nothing is dropped: the config comes back with a rate of 0.
    """
    defaults = (("mask", True), ("bias", 0.0), ("keep", True))
    spread = [np.broadcast_to(inputs.get(name, other), scores) for name, other in defaults]
    rows = [[x.tolist() for x in row] for row in zip(*words, *spread, strict=True)]
    return (config if "keep" in inputs else replace(config, dropout=0.0)), rows


def separate(inputs: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query, key and value of a call: a missing key is the query, a missing value the key."""
    key = inputs.get("key", inputs["query"])
    return inputs["query"], key, inputs.get("value", key)


def heads_by_hand(
    config: Any, w: Any, row: Any, score: Callable[..., float], value: Callable[..., Any] = lambda i, j, v: v
) -> tuple[Any, Any]:
    """Attention of one batch row, one number at a time: its output, and the weights of every head.

    The last query stands at the last key.

    Args:
        config: says causal, window and dropout.
        w: the parameters as lists; w_q, w_k, w_v, w_o and their biases are projections of each head.
        row: the words of self-attention, or those of queries, keys and values; then mask, bias and keep-mask of every
            head.
        score: of head h, positions i and j, a query and a key; without the bias that was given.
        value: of positions i and j and a value: what j gives to i.
    """
    *words, mask, bias, keep = row
    rows = dict(zip("qkv", words if len(words) == 3 else 3 * words, strict=True))
    first = len(rows["k"]) - len(rows["q"])  # the position of the first query
    left, right = getattr(config, "window", None) or (None, None)

    def part(name: str, h: int) -> list[list[float]]:
        columns = [line[h] for line in w[f"w_{name}"]]
        offset = w[f"b_{name}"][h] if f"b_{name}" in w else [0.0] * len(columns[0])
        return [
            [sum(a * line[c] for a, line in zip(word, columns, strict=True)) + offset[c] for c in range(len(offset))]
            for word in rows[name]
        ]

    def sees(i: int, j: int) -> bool:
        late = (config.causal and j > i) or (right is not None and j > i + right)
        return not (late or (left is not None and j < i - left))

    d = len(w["w_o"][0][0])
    y, weights = [list(w.get("b_o", [0.0] * d)) for _ in rows["q"]], []
    for h, w_o in enumerate(w["w_o"]):
        q, k, v = (part(name, h) for name in "qkv")
        alpha = []
        for i, query in enumerate(q):
            at = first + i
            raised = [
                exp(score(h, at, j, query, key) + bias[h][i][j]) if mask[h][i][j] and sees(at, j) else 0.0
                for j, key in enumerate(k)
            ]
            alpha.append([e / sum(raised) if e else 0.0 for e in raised])
            used = [a / (1 - config.dropout) if kept else 0.0 for a, kept in zip(alpha[i], keep[h][i], strict=True)]
            given = [value(at, j, word) for j, word in enumerate(v)]
            for c, line in enumerate(w_o):
                found = sum(a * word[c] for a, word in zip(used, given, strict=True))
                y[i] = [total + found * x for total, x in zip(y[i], line, strict=True)]
        weights.append(alpha)
    return y, weights


def stacked(pairs: Sequence[tuple[Any, ...]], *names: str) -> Arrays:
    """What loops found for every batch row, as arrays by name."""
    return {name: np.array(found, np.float64) for name, found in zip(names, zip(*pairs, strict=True), strict=True)}


def of_heads(
    config: Any,
    w: Any,
    words: Sequence[Any],
    given: Sequence[Any],
    weigh: Callable[[int, list[float | None]], list[float]],
    turn: Callable[[str, Any], Any] = lambda name, x: x,
    settle: Callable[[Any], Any] = lambda heads: heads,
) -> tuple[Any, Any]:
    """Output and weights of one batch row of a layer with heads, one number at a time.

    Args:
        config: with the fields of `mha`, or some of them.
        w: parameters by their names in `mha`, as lists.
        words: the rows of query, key and value.
        given: mask, bias and keep-mask, each `h t s`.
        weigh: from the head's number and the scores of a query, None where it does not see the key, to its weights.
        turn: from "q" or "k" and what the heads have of one word, `h k`, to what they compare.
        settle: from what the heads found for one word, `h v`, to what is projected.
    """

    def per_head(name: str, word: list[float]) -> list[list[float]]:
        weight, shift = w[f"w_{name}"], w.get(f"b_{name}")
        found = [
            [sum(x * row[h][c] for x, row in zip(word, weight, strict=True)) for c in range(len(weight[0][h]))]
            for h in range(len(weight[0]))
        ]
        return [
            [x + (0.0 if shift is None else shift[h][c]) for c, x in enumerate(vector)]
            for h, vector in enumerate(found)
        ]

    q, k, v = ([per_head(name, word) for word in rows] for name, rows in zip("qkv", words, strict=True))
    q, k = [turn("q", x) for x in q], [turn("k", x) for x in k]
    (mask, bias, keep), (left, right) = given, getattr(config, "window", None) or (None, None)
    scale = len(q[0][0]) ** -0.5 if getattr(config, "scale", None) is None else config.scale
    cap, d, group = getattr(config, "softcap", None), len(w["w_o"][0][0]), len(q[0]) // len(w["w_k"][0])
    y, weights = [], [[] for _ in range(config.num_heads)]
    for i in range(len(q)):
        out, place, contexts = list(w.get("b_o", [0.0] * d)), i + len(k) - len(q), []
        for h in range(config.num_heads):
            scores: list[float | None] = []
            for j in range(len(k)):
                late = (config.causal and j > place) or (right is not None and j > place + right)
                if late or (left is not None and j < place - left) or not mask[h][i][j]:
                    scores.append(None)
                    continue
                score = scale * sum(a * b for a, b in zip(q[i][h], k[j][h // group], strict=True))
                score = score if cap is None else cap * tanh(score / cap)
                scores.append(score + bias[h][i][j])
            own = weigh(h, scores)
            weights[h].append(own)
            used = [a / (1 - config.dropout) if kept else 0.0 for a, kept in zip(own, keep[h][i], strict=True)]
            columns = range(len(w["w_o"][h]))
            contexts.append([sum(a * word[h // group][c] for a, word in zip(used, v, strict=True)) for c in columns])
        for h, head in enumerate(settle(contexts)):
            for c, context in enumerate(head):
                out = [x + context * w["w_o"][h][c][o] for o, x in enumerate(out)]
        y.append(out)
    return y, weights


def disagreement(witness: Callable[..., Arrays], case: Case, **sizes: int) -> str:
    """Where the reference leaves its bounds around the witness, in words; empty where it does not.

    With sizes of axes, the inputs are others than those of the case.
    """
    drawn = draw(case)
    inputs = random_inputs(case.config, case.call, **sizes) if sizes else drawn.inputs
    want = bounded(case.config, inputs, drawn.params)
    found = {name: ratio(x, want[name]) for name, x in witness(case.config, inputs, drawn.params).items()}
    return ", ".join(f"{name}: error/bound {r:.3g}" for name, r in found.items() if not r <= 1)


def layer_of(tree: Tree, config: Config, weights: Arrays | None = None) -> Any:
    """A float64 layer in evaluation mode with these parameters."""
    cls = getattr(import_module(f"{tree.package.__name__}.{config.variant}"), config.class_name)
    options = {"rngs": nnx.Rngs(0), "param_dtype": "float64"} if tree.name == "jax" else {"dtype": "float64"}
    layer = cls(config, **options, _values=tree.arrays(weights or {}))
    layer.eval()
    return layer
