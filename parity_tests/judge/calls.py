"""A call of a layer, a tree that is asked, and what a call has: its axes, its heads, who may see whom."""

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from attn_np.contract import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision_of
from parity_tests.judge.candidates import extras, from_torch, leaves, run_numpy, run_torch, to_torch
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.judging import reference

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
        bounds: attn_np or a copy of it that `bounds.copies.adopt` knows: whose operations derive the bounds.
    """

    tree: str
    name: str
    bounds: str = "attn_np"

    def layer(self, call: Call, dtype: str = "float64") -> Any:
        """In evaluation mode."""
        config = call.config
        cls = getattr(import_module(f"{self.name}.{config.variant}"), config.class_name)
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
        return self.outputs(self.layer(call, dtype), call.inputs, **extras(call.config.variant, call.config.class_name))

    def outputs(self, layer: Any, inputs: Arrays, **more: Any) -> Arrays:
        """What a layer of the tree gives, by the names of `run`."""
        given = {name: self.array(x) for name, x in inputs.items()}

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
    second, of_weights = config.second_output(), "b t s" if "state" in arguments else "b h _ _"
    if weighs(config):
        of_weights = axes["mask"]
    axes |= {"y": "b t o"} | ({"out1": of_weights} if second is None else {"out1": second, "out2": of_weights})
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


def may_have(config: Config, **fields: Any) -> bool:
    """Whether the config has these fields and its contract takes these values for them, beside its others."""
    try:
        replace(config, **fields)
    except (TypeError, ValueError):
        return False
    return True


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
    own = ("w_q", "b_q", "b_content", "b_position", "w_rel_q", "b_rel_q", "w_q_global", "b_q_global")
    of_axes = ("w_q_rows", "b_q_rows", "w_q_columns", "b_q_columns")
    of_streams = ("w_added_q", "b_added_q")
    names = names or [name for name in own + of_axes + of_streams if name in w]
    if names:
        return call.with_params(**{name: w[name] * factor for name in names})
    return complete(call).given(query=call.inputs["query"] * factor)


def spread_bias(call: Call) -> np.ndarray:
    """The bias for every score, in steps of 2^-20, so that small integers add to it exactly."""
    return np.round(np.broadcast_to(call.inputs.get("bias", 0.0), score_shape(call)) * 2.0**20) / 2.0**20
