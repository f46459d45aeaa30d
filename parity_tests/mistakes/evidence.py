"""What gives a planted bug away while the reference is whole."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

from attn_np.attention.attend import attend, attend_vjp
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.candidates import Outcome, numpy_layer, run_jax, run_numpy, run_torch
from parity_tests.judge.cases import Case, Drawn, draw
from parity_tests.judge.judging import Row, compare, expected, judge_ends, judge_tape, reference
from parity_tests.mistakes.plant import Mutant, planted

RUNS = {"attn_np": run_numpy, "attn_jax": run_jax, "attn_torch": run_torch}


def outcome_of(
    tree: str, alias: str, case: Case, taped: bool, drawn: Drawn | None = None, jit: bool = False
) -> Outcome:
    """What the copy of a tree computes; in JAX operation by operation, or compiled with `jit`."""
    drawn = draw(case) if drawn is None else drawn
    if tree != "attn_jax":
        return RUNS[tree](case, drawn, taped, tree=alias)
    if jit:
        return run_jax(case, drawn, taped, tree=alias)
    import jax

    with jax.disable_jit():  # op by op: the small pieces are compiled once for all mutants
        return run_jax(case, drawn, taped, tree=alias, jit=False)


def evidence(mutant: Mutant, tree: str) -> Row | str | None:
    """What gives a mutant away: the first verdict that fails, the text of what it raised, or None if it survived."""
    with planted(mutant, tree) as alias:
        try:
            if mutant.variant == "attend":
                return attend_evidence(tree, alias)
            if mutant.call in ("greedy", "generate"):
                return decoding_evidence(mutant, tree, alias)
            return next((row for row in judged(mutant, tree, alias) if not row.ok), None)
        except Exception as error:
            if tree not in mutant.raises or str(error).startswith("mutants:"):
                raise
            return f"{type(error).__name__}: {error}"


def judged(mutant: Mutant, tree: str, alias: str) -> Iterator[Row]:
    """Every verdict on the mutant's case, one after another: stage by stage, and end to end."""
    case, p = mutant.case, precision_of(mutant.dtype)
    drawn = louder(draw(case), mutant.gain)
    jit = tree == "attn_jax"  # one program, instead of one for every operation and shape
    taped = outcome_of(tree, alias, case, True, drawn, jit)
    yield from judge_tape(case, mutant.name, drawn, taped, p, jit)
    ends = expected(case, p) if mutant.gain == 1 else reference(case, drawn, {}, p)
    yield from judge_ends(case, mutant.name, taped, *ends)


def louder(drawn: Drawn, gain: float) -> Drawn:
    """The same call with larger numbers."""
    inputs = {name: x if gain == 1 or x.dtype.kind in "bi" else x * gain for name, x in drawn.inputs.items()}
    return Drawn(inputs, drawn.params, drawn.seed)


def to_tree(tree: str, x: np.ndarray) -> Any:
    """A tree's own array."""
    if tree == "attn_np":
        return x
    if tree == "attn_torch":
        import torch

        return torch.from_numpy(x.copy())
    import jax.numpy as jnp

    return jnp.asarray(x)


# attend by itself: heads that are shared ------------------------------------------------------------------------------


def shared_heads() -> dict[str, np.ndarray]:
    """Six query heads on three key/value heads, with a mask, a bias and a keep-mask."""
    rng, b, t, s, h, g = np.random.default_rng(0), 2, 5, 7, 6, 3
    shapes = {"q": (b, t, h, 3), "k": (b, s, g, 3), "v": (b, s, g, 11), "bias": (b, h, t, s)}
    found = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return found | {name: rng.random((b, h, t, s)) < 0.6 for name in ("mask", "keep")}


def attend_evidence(tree: str, alias: str) -> str | None:
    inputs = shared_heads()
    exact: dict[str, Any] = {n: ErrArray(x, 0.0) if x.dtype.kind == "f" else x for n, x in inputs.items()}
    dcontext = np.cos(np.arange(2 * 5 * 6 * 11.0)).reshape(2, 5, 6, 11)
    exact_gradient: Any = ErrArray(dcontext, 0.0)
    tape: dict[str, Any] = {}
    with precision(precision_of("float64")), np.errstate(invalid="ignore"):
        want: dict[str, Any] = dict(zip(("context", "weights"), attend(**exact, rate=0.25, tape=tape), strict=True))
        grads = attend_vjp(tape, exact_gradient, rate=0.25, kv_heads=3)
        want |= dict(zip(("dq", "dk", "dv", "dbias"), grads, strict=True))
    module, tape = import_module(f"{alias}.attention.attend"), {}
    results = module.attend(**{name: to_tree(tree, x) for name, x in inputs.items()}, rate=0.25, tape=tape)
    got: dict[str, Any] = {name: np.asarray(x) for name, x in zip(("context", "weights"), results, strict=True)}
    if tree == "attn_np":
        grads = module.attend_vjp(tape, dcontext, rate=0.25, kv_heads=3)
        got |= dict(zip(("dq", "dk", "dv", "dbias"), grads, strict=True))
    for name, x in got.items():
        ratio = compare(x, want[name])["ratio"]
        if not ratio <= 1:
            return f"attend, {name}: error/bound {ratio:.3g}"
    return None


# Decoding -------------------------------------------------------------------------------------------------------------


def decoding_evidence(mutant: Mutant, tree: str, alias: str) -> str | None:
    """Tokens and lengths for stop tokens that occur, or the outputs of a free run, against the reference."""
    case = Case(mutant.variant, mutant.example, "plain", mutant.dtype)
    for stop in stops(case) if mutant.call == "greedy" else (0,):
        want, got = (
            decoded(case, mutant.call, stop, "attn_np", "attn_np"),
            decoded(case, mutant.call, stop, tree, alias),
        )
        for name, x in got.items():
            ratio = compare(x, want[name])["ratio"]
            if not ratio <= 1:
                return f"{mutant.call}, {name}: error/bound {ratio:.3g}"
    return None


def stops(case: Case) -> list[int]:
    """Tokens that decoding meets on its way, and one that it begins with."""
    return np.unique(decoded(case, "greedy", 0, "attn_np", "attn_np")["y"][:, :2]).tolist()


def decoded(case: Case, method: str, stop: int, tree: str, alias: str) -> dict[str, Any]:
    """What `greedy` or `generate` returns; from the reference itself, floats with their bounds."""
    drawn, config = draw(case), case.config
    given = {name: drawn.inputs[name] for name in ("source", "target")}
    given["target"] = given["target"][:, :1]
    options = {"steps": 6} | ({"stop": stop} if method == "greedy" else {})
    if tree == "attn_np":
        layer = numpy_layer(case, drawn.params, alias)
        if alias == tree and method == "generate":
            layer.set_params({name: ErrArray(x, 0.0) for name, x in drawn.params.items()})
            given = {name: ErrArray(x, 0.0) for name, x in given.items()}
    else:
        layer = layer_in(tree, alias, config, drawn)
        given = {name: to_tree(tree, x) for name, x in given.items()}
    with precision(precision_of("float64")):
        found = getattr(layer, method)(**given, **options)
    named = dict(zip(("y", "end"), found, strict=True))
    if tree == "attn_torch":
        named = {name: x.detach() for name, x in named.items()}
    return {name: x if isinstance(x, ErrArray) else np.asarray(x) for name, x in named.items()}


def layer_in(tree: str, alias: str, config: Any, drawn: Drawn) -> Any:
    """A layer of a copy of attn_torch or attn_jax."""
    cls = getattr(import_module(f"{alias}.{config.variant}"), config.class_name)
    values = {name: to_tree(tree, x) for name, x in drawn.params.items()}
    if tree == "attn_torch":
        return cls(config, dtype="float64", _values=values).eval()
    from flax import nnx

    layer = cls(config, rngs=nnx.Rngs(0), param_dtype="float64", _values=values)
    layer.eval()
    return layer
