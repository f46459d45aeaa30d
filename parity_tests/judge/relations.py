"""What must hold whatever the reference says: relations between two calls of one layer, and invariants of one call.

A mistake that all three trees share, the reference included, is invisible to a comparison of trees. It still breaks
some of these: keys have no order, a hidden key may as well not be there, a window is a mask. Nothing here knows the
right numbers. Where two calls must agree, they do so within the bounds that the reference derives for each of them; the
reference may have the same mistake, because its bounds only say how much rounding can do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from math import sqrt
from typing import Any

import numpy as np

from attn_np.contract import Config
from parity_tests.bounds.error_arrays import ErrArray, precision_of
from parity_tests.judge.candidates import DTYPES, extras, from_torch, leaves, run_numpy, run_torch, to_torch
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.judging import compare, reference

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Call:
    """One call of one layer.

    Attributes:
        config: of the layer.
        inputs, params: by name, float64.
    """

    config: Config
    inputs: Arrays
    params: Arrays

    def given(self, **inputs: Any) -> "Call":
        """Some inputs changed; None leaves one out."""
        held = {name: x for name, x in (self.inputs | inputs).items() if x is not None}
        return replace(self, inputs=held)

    def with_params(self, **params: np.ndarray) -> "Call":
        return replace(self, params=self.params | params)

    def with_fields(self, **fields: Any) -> "Call":
        return replace(self, config=replace(self.config, **fields))

    def has(self, *names: str) -> bool:
        return all(name in self.inputs for name in names)


@dataclass(frozen=True)
class Subject:
    """A tree, or a copy of one.

    Attributes:
        tree: the tree it is, or is a copy of.
        name: what to import.
        bounds: attn_np or a copy of it that `error_arrays.adopt` knows: whose operations derive the bounds.
    """

    tree: str
    name: str
    bounds: str = "attn_np"

    def layer(self, call: Call, dtype: str = "float64") -> Any:
        """In evaluation mode."""
        config = call.config
        cls = getattr(import_module(f"{self.name}.{config.variant}"), config.layer)
        values = {name: self.array(x) for name, x in call.params.items()}
        if self.tree == "attn_jax":
            from flax import nnx

            layer = cls(config, rngs=nnx.Rngs(0), param_dtype=dtype, _values=values)
            layer.eval()
            return layer
        return cls(config, dtype=dtype, _values=values).eval()

    def array(self, x: np.ndarray) -> Any:
        """The tree's own array."""
        if self.tree == "attn_np":
            return x
        if self.tree == "attn_torch":
            return to_torch(x, "cpu")
        import jax.numpy as jnp

        return jnp.asarray(x)

    def numpy(self, x: Any) -> np.ndarray:
        return from_torch(x) if self.tree == "attn_torch" else np.asarray(x)

    def run(self, call: Call, dtype: str = "float64") -> Arrays:
        """Every output by its name: "y", "out1" and so on."""
        more = extras(call.config.variant, call.config.layer)
        layer, given = self.layer(call, dtype), {name: self.array(x) for name, x in call.inputs.items()}

        def run(given: dict[str, Any]) -> dict[str, Any]:
            return leaves(layer(**given, **more))

        if self.tree == "attn_jax":  # one program, instead of one for every operation and shape
            import jax

            run = jax.jit(run)
        with np.errstate(all="ignore"):
            return {name: self.numpy(x) for name, x in run(given).items()}

    def bounded(self, call: Call) -> dict[str, ErrArray]:
        """Every output with its bound; the values are this tree's own."""
        limits, _ = reference(*case_of(call), {}, precision_of("float64"), self.bounds, backward=False)
        return {name: ErrArray(x, limits[name].b) for name, x in self.run(call).items()}

    def gradients(self, call: Call) -> Arrays:
        """Of inputs and parameters; JAX, which compiles, is spared."""
        runs = {"attn_np": run_numpy, "attn_torch": run_torch}
        with np.errstate(all="ignore"):
            return runs[self.tree](*case_of(call), False, tree=self.name).grads if self.tree in runs else {}


def case_of(call: Call) -> tuple[Case, Drawn]:
    """A call as the judge takes it."""
    return Case(call.config.variant, "", "", "float64", given=call.config), Drawn(call.inputs, call.params, 0)


# What there is to a call ----------------------------------------------------------------------------------------------


def letters(config: Config) -> dict[str, list[str]]:
    """Axis letters of every argument and every output."""
    arguments = config.arguments()
    axes = {name: arg.axes for name, arg in arguments.items()}
    if "state" in arguments:
        axes |= {"y": "b t o", "out1": "l b e", "out2": "b t s"}
    else:
        axes |= {"y": "b t o"} | ({"out1": axes["mask"]} if weighs(config) else {})
    return {name: text.split() for name, text in axes.items()}


def along(config: Config, arrays: dict[str, Any], letter: str, index: Any) -> dict[str, Any]:
    """Some entries of the axes with a letter; an axis of size 1 among longer ones is spread over them and stays."""
    axes, found = letters(config), {}
    most = max((x.shape[i] for n, x in arrays.items() for i, own in enumerate(axes[n]) if own == letter), default=0)
    size = config.sizes().get(letter, most)
    for name, x in arrays.items():
        for i, own in enumerate(axes[name]):
            if own == letter and x.shape[i] == size:
                x = x[(slice(None),) * i + (index,)]
        found[name] = x
    return found


def moved(call: Call, letter: str, index: Any) -> Call:
    return replace(call, inputs=along(call.config, call.inputs, letter, np.asarray(index)))


def complete(call: Call) -> Call:
    """Key and value written out, where the query stands in for them."""
    arguments = call.config.arguments()
    if "key" not in arguments:
        return call
    key = call.inputs.get("key", call.inputs["query"])
    return call.given(key=key, value=call.inputs.get("value", key))


def field(config: Config, name: str, default: Any = None) -> Any:
    return getattr(config, name, default)


def weighs(config: Config) -> bool:
    """Queries meet keys under a mask, and the weights are returned; the mask of other layers is for padding."""
    mask = config.arguments().get("mask")
    return mask is not None and mask.axes.endswith(("t s", "t t"))


def attends(config: Config) -> bool:
    return "query" in config.arguments() and weighs(config)


def keyed(config: Config) -> bool:
    """Keys are an argument of their own, not the queries."""
    return "key" in config.arguments()


def ordered(config: Config) -> bool:
    """Positions matter."""
    return bool(field(config, "causal")) or field(config, "window") is not None


def over_keys(config: Config) -> bool:
    return field(config, "normalize_over", "keys") == "keys"


def score_shape(call: Call) -> tuple[int, ...]:
    """b, heads if there are any, queries, keys."""
    call = complete(call)
    if attends(call.config):
        b, t, _ = call.inputs["query"].shape
        s = call.inputs["key"].shape[1] if keyed(call.config) else t
    else:
        (b, s), t = call.inputs["source"].shape[:2], call.inputs["target"].shape[1]
    return (b, call.config.sizes()["h"], t, s) if "h" in letters(call.config)["mask"] else (b, t, s)


def near(call: Call) -> np.ndarray:
    """Who may see whom by causality and window alone: query i stands at position i + s - t."""
    t, s = score_shape(call)[-2:]
    left, right = field(call.config, "window") or (None, None)
    found = np.ones((t, s), bool)
    for i in range(t):
        for j in range(s):
            ahead = j - (i + s - t)
            late = (field(call.config, "causal", False) and ahead > 0) or (right is not None and ahead > right)
            found[i, j] = not late and (left is None or -ahead <= left)
    return found


def allowed(call: Call) -> np.ndarray:
    """Who may see whom, for every score."""
    return np.broadcast_to(call.inputs.get("mask", True), score_shape(call)) & near(call)


def louder(call: Call, factor: float) -> Call:
    """All scores times a factor, by way of what makes them; the bias is as it was."""
    w, variant = call.params, call.config.variant
    if variant == "fused_qkv":
        changed = {name: w[name].copy() for name in ("w_qkv", "b_qkv") if name in w}
        for name, x in changed.items():
            x[(slice(None), 0) if name == "w_qkv" else 0] *= factor
        return call.with_params(**changed)
    names = [name for name in ("w_score", "w", "decoder.attention.w_score") if name in w]
    own = ("w_q", "b_q", "b_content", "b_position", "w_rel_q", "w_q_global", "b_q_global")
    names = names or [name for name in own if name in w]
    if names:
        return call.with_params(**{name: w[name] * factor for name in names})
    return complete(call).given(query=call.inputs["query"] * factor)


def spread_bias(call: Call) -> np.ndarray:
    """The bias for every score, in steps of 2^-20, so that small integers add to it exactly."""
    return np.round(np.broadcast_to(call.inputs.get("bias", 0.0), score_shape(call)) * 2.0**20) / 2.0**20


# Relations ------------------------------------------------------------------------------------------------------------

Pair = tuple[str, Any, Any]
Relation = Callable[[Subject, Call], Iterator[Pair]]
RELATIONS: dict[str, Relation] = {}


def relation(function: Relation) -> Relation:
    """Register; a relation gives what must agree: a name and two arrays. It gives nothing where it does not apply."""
    RELATIONS[function.__name__] = function
    return function


def both(got: dict[str, Any], want: dict[str, Any]) -> Iterator[Pair]:
    for name, x in want.items():
        yield name, got[name], x


def ratios(name: str, subject: Subject, call: Call) -> dict[str, float]:
    """Largest difference over the sum of both bounds, by array; arrays without bounds must be equal.

    Nothing where the contract says why the relation does not hold, or the layer lacks what it is about.
    """
    lacking = NEEDS.get(name, set()) - offered(call.config)
    return {} if lacking or name in call.config.exempt() else compared(name, subject, call)


# What a relation is about, where not every layer has it: returned weights, an argument, a field.
NEEDS = {
    "weights_add_up_to_one": {"weights"},
    "a_constant_on_all_scores_changes_nothing": {"bias"},
    "a_large_bias_decides": {"bias", "weights"},
    "every_key_twice_changes_nothing": {"weights"},
    "twice_the_scores_square_the_weights": {"weights"},
    "indifferent_scores_share_evenly": {"weights"},
    "the_output_is_the_weights_times_the_values": {"weights"},
    "weights_do_not_know_dropout": {"weights"},
    "evaluation_drops_nothing": {"dropout"},
    "keeping_everything_is_no_dropout": {"dropout"},
}


def offered(config: Config) -> set[str]:
    """Arguments and fields, and "weights" where they are returned."""
    weighs = not attends(config) or extras(config.variant, config.layer)
    return {*config.arguments(), *config.fields(), *(["weights"] if weighs else [])}


def compared(name: str, subject: Subject, call: Call) -> dict[str, float]:
    """The same, whatever the contract says."""
    found: dict[str, float] = {}
    for what, got, want in RELATIONS[name](subject, call):
        found[what] = max(found.get(what, 0.0), apart(got, want))
    return found


def apart(got: Any, want: Any) -> float:
    want = want if isinstance(want, ErrArray) else ErrArray(want, 0.0)
    if isinstance(got, ErrArray):
        if got.shape != want.shape:
            return np.inf
        got, want = got.v, ErrArray(want.v, want.b + got.b)
    if not np.isfinite(want.b).all():
        return np.inf
    return compare(np.asarray(got, np.float64), want)["ratio"]


def broken(subject: Subject, call: Call) -> Iterator[str]:
    """Every relation that does not hold, in words."""
    for name in RELATIONS:
        wrong = {what: r for what, r in ratios(name, subject, call).items() if not r <= 1}
        if wrong:
            yield f"{name}: " + ", ".join(f"{what} {r:.3g}" for what, r in wrong.items())


# Order ----------------------------------------------------------------------------------------------------------------


@relation
def keys_have_no_order(s: Subject, call: Call) -> Iterator[Pair]:
    """Keys moved with their values, mask, bias and keep-mask. In self-attention the positions themselves."""
    config, call = call.config, complete(call)
    if attends(config) and not ordered(config):
        letter, n = ("s" if keyed(config) else "t"), score_shape(call)[-1]
        order = np.random.default_rng(n).permutation(n)
        yield from both(s.bounded(moved(call, letter, order)), along(config, s.bounded(call), letter, order))


@relation
def queries_have_no_order(s: Subject, call: Call) -> Iterator[Pair]:
    config, call = call.config, complete(call)
    if keyed(config) and not ordered(config):
        order = np.random.default_rng(0).permutation(score_shape(call)[-2])
        yield from both(s.bounded(moved(call, "t", order)), along(config, s.bounded(call), "t", order))


@relation
def batch_rows_stand_alone(s: Subject, call: Call) -> Iterator[Pair]:
    """A row by itself gives what it gives among others."""
    first = next(name for name in ("x", "query", "source") if name in call.inputs)
    whole = s.bounded(call)
    for i in (0, len(call.inputs[first]) - 1):
        yield from both(s.bounded(moved(call, "b", [i])), along(call.config, whole, "b", [i]))


@relation
def the_last_queries_stand_alone(s: Subject, call: Call) -> Iterator[Pair]:
    """They stand at the last keys, whoever asks before them: what decoding with a cache relies on."""
    config, call = call.config, complete(call)
    if keyed(config) and over_keys(config):
        t = score_shape(call)[-2]
        whole = s.bounded(call)
        for n in {1, t // 2 + 1}:
            last = np.arange(t - n, t)
            yield from both(s.bounded(moved(call, "t", last)), along(config, whole, "t", last))


@relation
def heads_stand_alone(s: Subject, call: Call) -> Iterator[Pair]:
    """Each head by itself: the output is the sum of theirs, or has them side by side."""
    config, sizes = call.config, call.config.sizes()
    if field(config, "num_heads", 1) == 1:
        return
    if sizes["h"] != field(config, "num_heads"):  # heads of the softmax that are no heads of the projections
        return
    fields = {"num_heads": 1, "num_kv_heads": 1, "head_dim": sizes.get("k"), "value_head_dim": sizes.get("v")}
    single = replace(config, **{name: x for name, x in fields.items() if x and name in config.fields()})
    shared = sizes["h"] // sizes.get("g", sizes["h"])
    axes, whole, found = {n: p.axes.split() for n, p in config.params().items()}, s.bounded(call), []
    for h in range(sizes["h"]):
        own = {n: x.take([h], axes[n].index("h")) if "h" in axes[n] else x for n, x in call.params.items()}
        own |= {n: x.take([h // shared], axes[n].index("g")) for n, x in own.items() if "g" in axes[n]}
        found.append(s.bounded(Call(single, along(config, call.inputs, "h", [h]), own)))
        if weighs(config):
            yield f"weights of head {h}", found[-1]["out1"], whole["out1"][:, h : h + 1]
    if "w_o" not in call.params:
        yield "y", np.concatenate([part["y"] for part in found], axis=-1), whole["y"]
        return
    y, b_o = found[0]["y"], call.params.get("b_o", 0.0)
    for part in found[1:]:
        y = y + (part["y"] - b_o)
    yield "y", y, whole["y"]


# Weights --------------------------------------------------------------------------------------------------------------


def weights_name(config: Config) -> str:
    return "out1" if attends(config) else "out2"


@relation
def weights_add_up_to_one(s: Subject, call: Call) -> Iterator[Pair]:
    """Over what is allowed; what is hidden weighs exactly 0."""
    config = call.config
    if not weighs(config):
        return
    weights, seen = s.bounded(call)[weights_name(config)], allowed(call)
    axis = -1 if over_keys(config) else -2
    yield "sum", np.sum(weights, axis=axis), seen.any(axis).astype(np.float64)
    yield "hidden", weights.v[~seen], np.zeros(int(np.sum(~seen)))
    yield "negative", np.minimum(weights.v, 0.0), np.zeros(weights.shape)


@relation
def a_query_without_keys_gives_nothing(s: Subject, call: Call) -> Iterator[Pair]:
    """Or the bias of the output projection, where there is one."""
    if attends(call.config) and over_keys(call.config):
        shape = score_shape(call)
        mask = np.broadcast_to(call.inputs.get("mask", True), shape).copy()
        mask[0, ..., shape[-2] // 2, :] = False
        y = s.run(call.given(mask=mask))["y"][0, shape[-2] // 2]
        yield "y", y, np.broadcast_to(call.params.get("b_o", 0.0), y.shape)


@relation
def a_constant_on_all_scores_changes_nothing(s: Subject, call: Call) -> Iterator[Pair]:
    """As many scores as a softmax sees together may rise by one number."""
    if attends(call.config):
        bias = spread_bias(call)
        axis = -1 if over_keys(call.config) else -2
        step = np.random.default_rng(1).integers(-8, 8, size=bias.shape).take([0], axis).astype(np.float64)
        yield from both(s.bounded(call.given(bias=bias + step)), s.bounded(call.given(bias=bias)))


@relation
def a_large_bias_decides(s: Subject, call: Call) -> Iterator[Pair]:
    """A score 2^12 above the others takes all the weight, exactly; one as far below gets none."""
    if attends(call.config) and over_keys(call.config):
        keys = score_shape(call)[-1]
        for sign in (1.0, -1.0) if keys > 1 else (1.0,):
            bias = np.zeros(score_shape(call))
            bias[..., 0] = sign * 2.0**12
            found = s.run(call.given(bias=bias, mask=None).with_fields(**unordered(call.config)))["out1"][..., 0]
            yield f"weight at {sign:+g}", found, np.full(found.shape, float(sign > 0))


def unordered(config: Config) -> dict[str, Any]:
    """Fields that let every query see every key."""
    return {name: None if name == "window" else False for name in ("causal", "window") if name in config.fields()}


@relation
def every_key_twice_changes_nothing(s: Subject, call: Call) -> Iterator[Pair]:
    """The two share the weight that the one had."""
    config, call = call.config, complete(call)
    if keyed(config) and not ordered(config) and over_keys(config):
        twice = np.repeat(np.arange(score_shape(call)[-1]), 2)
        got, want = s.bounded(moved(call, "s", twice)), s.bounded(call)
        yield "y", got["y"], want["y"]
        yield "weights", got["out1"], want["out1"][..., twice] * 0.5


@relation
def twice_the_scores_square_the_weights(s: Subject, call: Call) -> Iterator[Pair]:
    """Without a bias, and with twice the softcap where there is one: p_j^2 / sum p_i^2."""
    config = call.config
    if attends(config) and over_keys(config):
        plain = call.given(bias=None)
        cap = {} if field(config, "softcap") is None else {"softcap": 2 * field(config, "softcap")}
        p = s.bounded(plain)["out1"]
        yield (
            "weights",
            s.bounded(louder(plain, 2.0).with_fields(**cap))["out1"] * np.sum(p * p, -1, keepdims=True),
            p * p,
        )


@relation
def indifferent_scores_share_evenly(s: Subject, call: Call) -> Iterator[Pair]:
    """All scores 0: every allowed key weighs the same."""
    if not weighs(call.config):
        return
    seen, axis = allowed(call), -1 if over_keys(call.config) else -2
    count = np.maximum(seen.sum(axis, keepdims=True), 1).astype(np.float64)
    weights = s.bounded(louder(call.given(bias=None) if attends(call.config) else call, 0.0))
    yield "weights", weights[weights_name(call.config)] * count, seen.astype(np.float64)


@relation
def loud_scores_stay_finite(s: Subject, call: Call) -> Iterator[Pair]:
    """Scores far beyond what exp can take."""
    if weighs(call.config):
        for name, x in s.run(louder(call, 2.0**14)).items():
            yield name, np.isfinite(x), np.ones(x.shape)


# Values and dropout ---------------------------------------------------------------------------------------------------


@relation
def outputs_stay_among_the_values(s: Subject, call: Call) -> Iterator[Pair]:
    """Without projections and dropout no output is above the largest or below the smallest value a query sees."""
    if keyed(call.config) and "w_v" not in call.params and over_keys(call.config):
        call = complete(call).given(keep=None)
        y, seen, v = s.bounded(call)["y"], allowed(call)[..., None], call.inputs["value"][:, None]
        low, high = (np.where(seen, v, sign * np.inf) for sign in (1, -1))
        low, high = low.min(2, initial=np.inf), high.max(2, initial=-np.inf)
        some = seen.any(2)
        yield "y", y, np.where(some, np.clip(y.v, low, high), 0.0)


@relation
def the_output_is_linear_in_the_values(s: Subject, call: Call) -> Iterator[Pair]:
    """Half of the values and the other half give, together, what all of them give."""
    call = complete(call)
    if keyed(call.config):
        v = call.inputs["value"]
        even = (np.arange(v.shape[1]) % 2 == 0)[:, None]
        y = [s.bounded(call.given(value=x))["y"] for x in (v, 0.0 * v, np.where(even, v, 0.0), np.where(even, 0.0, v))]
        yield "y", y[0] + y[1], y[2] + y[3]


@relation
def the_output_is_the_weights_times_the_values(s: Subject, call: Call) -> Iterator[Pair]:
    """The returned weights, after dropout, average the projected values; heads are joined by the last projection."""
    call, w = complete(call), call.params
    if not attends(call.config):
        return
    sizes = call.config.sizes()
    found, heads = s.bounded(call), "h" in sizes
    if "g" in sizes and sizes["h"] % sizes["g"] != 0:  # the heads of values are not those of the weights
        return
    keep = np.broadcast_to(call.inputs.get("keep", True), score_shape(call))
    rate = field(call.config, "dropout", 0.0) if call.has("keep") else 0.0
    weights = np.where(keep, found["out1"] / (1.0 - rate), 0.0)
    values: Any = ErrArray(call.inputs["value" if keyed(call.config) else "query"], 0.0)
    w_v, b_v = (w["w_qkv"][:, 2], w.get("b_qkv", [None] * 3)[2]) if "w_qkv" in w else (w.get("w_v"), w.get("b_v"))
    if heads and w_v is None:  # the values of a head are made otherwise
        return
    if w_v is not None:
        values = np.sum(values.reshape(*values.shape, *(1,) * (w_v.ndim - 1)) * w_v, axis=2)
        values = values if b_v is None else values + b_v
    if heads and w_v is not None and values.shape[2] != sizes["h"]:  # heads of values are shared
        values = np.repeat(values, sizes["h"] // values.shape[2], axis=2)
    if heads:
        values = np.moveaxis(values, 2, 1)
    context = np.sum(weights.reshape(*weights.shape, 1) * np.expand_dims(values, -3), axis=-2)
    if heads:
        context = np.moveaxis(context, 1, 2)
    y = context.reshape(*context.shape[:2], -1)
    if "w_o" in w:
        w_o = w["w_o"].reshape(-1, w["w_o"].shape[-1])
        y = np.sum(y.reshape(*y.shape, 1) * w_o, axis=2) + w.get("b_o", 0.0)
    yield "y", found["y"], y


@relation
def weights_do_not_know_dropout(s: Subject, call: Call) -> Iterator[Pair]:
    """They are returned as they were before it."""
    if attends(call.config) and call.has("keep"):
        yield "weights", s.run(call)["out1"], s.run(call.given(keep=None))["out1"]


def without_keeps(call: Call) -> Call:
    return call.given(**{name: None for name in call.inputs if name.endswith("keep")})


@relation
def evaluation_drops_nothing(s: Subject, call: Call) -> Iterator[Pair]:
    call = without_keeps(call)
    if "dropout" in call.config.fields():
        yield from both(s.run(call.with_fields(dropout=0.5)), s.run(call.with_fields(dropout=0.0)))


@relation
def keeping_everything_is_no_dropout(s: Subject, call: Call) -> Iterator[Pair]:
    if "dropout" not in call.config.fields():
        return
    call = call.with_fields(dropout=0.0)
    whole = {name: np.ones(x.shape, bool) for name, x in call.inputs.items() if name.endswith("keep")}
    yield from both(s.run(call.given(**whole)), s.run(without_keeps(call)))


@relation
def the_output_bias_shifts_the_output(s: Subject, call: Call) -> Iterator[Pair]:
    for name in ("b_o", "decoder.b_o"):
        if name in call.params:
            b = call.params[name]
            other = np.cos(np.arange(b.size)).reshape(b.shape)
            yield name, s.bounded(call.with_params(**{name: other}))["y"], s.bounded(call)["y"] - b + other


# Who sees whom --------------------------------------------------------------------------------------------------------


def hidden_pieces(call: Call) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Keys to hide, and those that stay: the first two, and where positions do not count the last two."""
    n = score_shape(call)[-1]
    if n > 2:
        yield np.arange(2), np.arange(2, n)
        if not ordered(call.config):
            yield np.arange(n - 2, n), np.arange(n - 2)


@relation
def hidden_keys_may_as_well_not_be_there(s: Subject, call: Call) -> Iterator[Pair]:
    """Hiding keys from everybody and leaving them out is the same."""
    config, call = call.config, complete(call)
    if not weighs(config):
        return
    letter = "t" if attends(config) and not keyed(config) else "s"
    for hidden, rest in hidden_pieces(call):
        mask = np.broadcast_to(call.inputs.get("mask", True), score_shape(call)).copy()
        mask[..., hidden] = False
        masked = call.given(mask=mask)
        yield from both(along(config, s.bounded(masked), letter, rest), s.bounded(moved(masked, letter, rest)))


@relation
def what_is_hidden_has_no_influence(s: Subject, call: Call) -> Iterator[Pair]:
    """NaN in keys that nobody sees and in queries that see nothing: outputs and gradients stay, to the bit."""
    config, call = call.config, complete(call)
    if not weighs(config):
        return
    for hidden, _ in hidden_pieces(call):
        mask = np.broadcast_to(call.inputs.get("mask", True), score_shape(call)).copy()
        mask[..., hidden] = False
        spoilt = ("query", "key", "value")
        if attends(config):
            mask[..., hidden[hidden < mask.shape[-2]], :] = False
        else:
            spoilt = ("source",)
        clean = call.given(mask=mask)
        dirty = clean.given(**{name: spoil(call.inputs[name], hidden) for name in spoilt if name in call.inputs})
        yield from both(s.run(dirty), s.run(clean))
        want = s.gradients(clean)
        yield from both(s.gradients(dirty), want)


def spoil(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    """NaN at some positions; other tokens where there are tokens."""
    x, places = x.copy(), places[places < x.shape[1]]
    x[:, places] = 0 if x.dtype.kind in "iu" else np.nan
    return x


@relation
def a_window_is_a_mask(s: Subject, call: Call) -> Iterator[Pair]:
    """Causality and window written out as a mask."""
    config = call.config
    if ordered(config) and weighs(config):
        masked = call.given(mask=allowed(call)).with_fields(**unordered(config))
        yield from both(s.bounded(call), s.bounded(masked))


@relation
def a_wide_window_hides_nothing(s: Subject, call: Call) -> Iterator[Pair]:
    config = call.config
    if "window" in config.fields():
        n = max(score_shape(call))
        free = call.with_fields(window=None)
        yield from both(s.bounded(call.with_fields(window=(n, n))), s.bounded(free))
        causal = call.with_fields(window=None, causal=True)
        yield from both(s.bounded(call.with_fields(window=(None, 0), causal=False)), s.bounded(causal))


# Scale, softcap, precision --------------------------------------------------------------------------------------------


@relation
def the_default_scale_is_that_of_the_head(s: Subject, call: Call) -> Iterator[Pair]:
    if "scale" in call.config.fields():
        width = call.config.sizes().get("k") or call.inputs["query"].shape[-1]
        plain = s.bounded(call.with_fields(scale=None))
        yield from both(plain, s.bounded(call.with_fields(scale=1 / sqrt(width))))


@relation
def the_scale_belongs_to_the_queries(s: Subject, call: Call) -> Iterator[Pair]:
    if "scale" in call.config.fields():
        half = s.bounded(call.with_fields(scale=0.5))
        yield from both(half, s.bounded(louder(call, 0.5).with_fields(scale=1.0)))


@relation
def a_huge_softcap_caps_nothing(s: Subject, call: Call) -> Iterator[Pair]:
    """c tanh(x / c) differs from x by x^3 / (3 c^2): for c = 2^50 far less than a rounding."""
    if "softcap" in call.config.fields():
        capped = s.bounded(call.with_fields(softcap=2.0**50))
        yield from both(capped, s.bounded(call.with_fields(softcap=None)))


@relation
def sixteen_bits_are_computed_in_float32(s: Subject, call: Call) -> Iterator[Pair]:
    """The same bits as a float32 layer gives, rounded once."""
    for dtype in ("bfloat16", "float16"):

        def turned(arrays: Arrays, kind: str) -> Arrays:
            return {n: x.astype(DTYPES[kind]) if x.dtype.kind not in "biu" else x for n, x in arrays.items()}

        low = replace(call, inputs=turned(call.inputs, dtype), params=turned(call.params, dtype))
        wide = replace(low, inputs=turned(low.inputs, "float32"), params=turned(low.params, "float32"))
        got, want = s.run(low, dtype), s.run(wide, "float32")
        for name, x in want.items():
            yield f"{name} in {dtype}", got[name].astype(np.float64), x.astype(DTYPES[dtype]).astype(np.float64)


@relation
def the_last_bits_are_felt(s: Subject, call: Call) -> Iterator[Pair]:
    """Inputs a few of float64's last bits larger give another output: nothing on the way has fewer bits."""
    call = without_keeps(call).with_fields(**unordered(call.config)).given(mask=None)
    if attends(call.config) and min(score_shape(call)[-2:]) < 3:
        return
    y = s.run(call)["y"]
    for name, x in call.inputs.items():
        if x.dtype.kind == "f":
            moved_y = s.run(call.given(**{name: x * (1 + 2.0**-44)}))["y"]
            yield name, np.any(moved_y != y, keepdims=True), np.ones((1,) * y.ndim)


# Recurrence -----------------------------------------------------------------------------------------------------------


def cut(call: Call, first: bool) -> Call:
    """The first or the second half of the positions t."""
    name = "x" if "x" in call.inputs else "target"
    n = call.inputs[name].shape[1]
    return moved(call, "t", np.arange(n // 2) if first else np.arange(n // 2, n))


@relation
def a_sequence_in_pieces(s: Subject, call: Call) -> Iterator[Pair]:
    """The returned state goes into the next call: together they give what one call gives."""
    if "state" not in call.config.arguments():
        return
    if call.has("mask"):  # a source position that no target of a piece sees is padding in that piece
        call = call.given(mask=np.repeat(call.inputs["mask"][:, :1], call.inputs["target"].shape[1], axis=1))
    whole, one = s.bounded(call), s.run(cut(call, True))
    two = s.run(cut(call, False).given(state=one["out1"]))
    yield "y", np.concatenate([one["y"], two["y"]], axis=1), whole["y"]
    yield "state", two["out1"], whole["out1"]
    if "out2" in whole:
        yield "weights", np.concatenate([one["out2"], two["out2"]], axis=1), whole["out2"]


def is_gru(config: Config) -> bool:
    return config.variant == "gru"


@relation
def layers_stand_alone(s: Subject, call: Call) -> Iterator[Pair]:
    """Each layer by itself, fed with the outputs of the one below after dropout."""
    config, n = call.config, field(call.config, "num_layers", 1)
    if not is_gru(config) or n == 1:
        return
    whole, x = s.bounded(call), call.inputs["x"]
    for i in range(n):
        own = {
            f"layers.0.{name.split('.')[2]}": p for name, p in call.params.items() if name.startswith(f"layers.{i}.")
        }
        single = replace(config, input_dim=x.shape[-1], num_layers=1)
        state = {"state": call.inputs["state"][i : i + 1]} if call.has("state") else {}
        found = s.run(Call(single, {"x": x} | state, own))
        yield f"state of layer {i}", found["out1"], whole["out1"][i : i + 1]
        x = found["y"]
        if i < n - 1 and call.has("keep"):
            x = np.where(call.inputs["keep"][i], x / (1.0 - field(config, "dropout")), 0.0)
    yield "y", x, whole["y"]


def with_gates(call: Call, **gates: float) -> Call:
    """Input biases of gates, r, z or n, moved by a number in every layer."""
    changed = {}
    for name, p in call.params.items():
        if name.endswith(".b_x"):
            p = p.copy()
            for gate, by in gates.items():
                p["rzn".index(gate)] += by
            changed[name] = p
    return call.with_params(**changed)


@relation
def a_shut_update_gate_keeps_the_state(s: Subject, call: Call) -> Iterator[Pair]:
    """z = 1: every state is the one before."""
    if is_gru(call.config) and field(call.config, "use_bias") and call.has("state"):
        found, state = s.bounded(with_gates(call, z=2.0**12)), call.inputs["state"]
        yield "state", found["out1"], state
        yield "y", found["y"], np.repeat(state[-1][:, None], found["y"].shape[1], axis=1)


@relation
def open_gates_forget_the_state(s: Subject, call: Call) -> Iterator[Pair]:
    """r = 0 and z = 0: neither the state nor the recurrent product of n, nor its bias, matters."""
    if is_gru(call.config) and field(call.config, "use_bias") and call.has("state"):
        gone = with_gates(call, r=-(2.0**12), z=-(2.0**12))
        changed = {}
        for name, p in call.params.items():
            if name.endswith(".b_h"):
                changed[name] = p.copy()
                changed[name][2] += 1.0
        other = gone.given(state=-call.inputs["state"]).with_params(**changed)
        yield from both(s.run(other), s.run(gone))


@relation
def biases_of_a_gate_add_up(s: Subject, call: Call) -> Iterator[Pair]:
    """Those of r and z act by their sum alone, and with r = 1 those of n do too."""
    if is_gru(call.config) and field(call.config, "use_bias"):
        open_ = {n: np.round(p * 2.0**20) / 2.0**20 for n, p in call.params.items() if n.endswith((".b_x", ".b_h"))}
        call = with_gates(call.with_params(**open_), r=2.0**12)
        exchanged = {n: call.params[n[:-1] + ("h" if n[-1] == "x" else "x")] for n in open_}
        yield from both(s.bounded(call.with_params(**exchanged)), s.bounded(call))


@relation
def a_still_network_halves_its_state(s: Subject, call: Call) -> Iterator[Pair]:
    """All weights 0: z = 1/2 and n = 0, exactly."""
    if is_gru(call.config) and call.has("state"):
        still, state = {n: 0.0 * p for n, p in call.params.items()}, call.inputs["state"]
        found = s.run(call.with_params(**still))
        t = call.inputs["x"].shape[1]
        yield "y", found["y"], np.stack([state[-1] * 0.5 ** (i + 1) for i in range(t)], axis=1)
        yield "state", found["out1"], state * 0.5**t


# Decoding -------------------------------------------------------------------------------------------------------------


def decodes(config: Config) -> bool:
    return config.variant == "seq2seq"


@relation
def the_decoder_begins_where_the_encoder_ended(s: Subject, call: Call) -> Iterator[Pair]:
    """The encoder's last state given by hand changes nothing."""
    if not decodes(call.config) or field(call.config, "vocab_size") is not None:
        return
    call = call.given(state=None, mask=None)
    own = {name.removeprefix("encoder."): p for name, p in call.params.items() if name.startswith("encoder.")}
    keep = {"keep": call.inputs["encoder_keep"]} if call.has("encoder_keep") else {}
    child: Any = call.config.children()["encoder"]
    last = s.run(Call(child, {"x": call.inputs["source"]} | keep, own))["out1"]
    yield from both(s.run(call.given(state=last)), s.bounded(call))


@relation
def generation_feeds_its_outputs_back(s: Subject, call: Call) -> Iterator[Pair]:
    """Given its own outputs as targets, one later, the decoder repeats them."""
    config, sizes = call.config, call.config.sizes()
    if not decodes(config) or field(config, "vocab_size") is not None or sizes["o"] != sizes["d"]:
        return
    start = {name: x for name, x in call.inputs.items() if name in ("source", "state")}
    first = call.inputs["target"][:, :1]
    y, last = s.layer(call).generate(**{n: s.array(x) for n, x in (start | {"target": first}).items()}, steps=4)
    fed = np.concatenate([first, s.numpy(y)[:, :-1]], axis=1)
    want = s.bounded(Call(config, start | {"target": fed}, call.params))
    yield "y", s.numpy(y), want["y"]
    yield "state", s.numpy(last), want["out1"]


@relation
def decoding_takes_the_likeliest_until_the_stop(s: Subject, call: Call) -> Iterator[Pair]:
    """Teacher forcing repeats the tokens up to the stop, the rest is the stop, the length counts what comes before."""
    if not decodes(call.config) or field(call.config, "vocab_size") is None:
        return
    start = {name: x for name, x in call.inputs.items() if name in ("source", "state")}
    first, layer = call.inputs["target"][:, :1], s.layer(call)
    given = {n: s.array(x) for n, x in (start | {"target": first}).items()}
    words = s.numpy(layer.greedy(**given, steps=3, stop=0)[0])
    for stop in np.unique(words).tolist():  # tokens that occur, so that it does stop
        tokens, lengths = (s.numpy(x) for x in layer.greedy(**given, steps=5, stop=stop))
        fed = np.concatenate([first, tokens[:, :-1]], axis=1)
        likeliest = s.run(Call(call.config, start | {"target": fed}, call.params))["y"].argmax(axis=-1)
        over = np.cumsum(tokens == stop, axis=1) > 0
        yield f"length with {stop}", lengths, np.sum(~over, axis=1)
        before = np.concatenate([np.zeros_like(over[:, :1]), over[:, :-1]], axis=1)
        yield f"tokens with {stop}", tokens, np.where(before, stop, likeliest)
