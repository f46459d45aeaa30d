"""`attend` at the sizes of ordinary calls, in three trees, with the kernels' own thresholds.

Other tests shrink the blocks; what a threshold on b h t s decides they do not see. Here a seed draws the sizes, what
the call asks for and its numbers. One key/value head of one sequence is judged, drawn too: what it gives depends on no
other. Where all share an array, the gradient of the context is 0 elsewhere, so that the array's is of this head alone.

    python -m parity_tests.tests.kernels.sizes torch --cases 5000
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import torch

from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import fast_precision_of, precision
from parity_tests.judge import kernels
from parity_tests.tests.inputs import TREES, Arrays
from parity_tests.tests.mutation.checks_terms import buckets
from parity_tests.tests.witness import ratio

MOST_SCORES = 2**21  # b h t s; more in one case in twelve
# Seven calls of eight, in the command: XLA's own passes stay, and LLVM takes a third of the time.
QUICK_TO_COMPILE: Mapping[str, Any] = MappingProxyType({"xla_backend_optimization_level": "0"})
SHARED = ("bias", "sinks", "slopes", "table")  # the gradients of these are sums over heads or sequences


@dataclass(frozen=True)
class Call:
    """A call of `attend`.

    Attributes:
        arrays: q, k, v, and those that it asks for of mask, bias, sinks, and the slopes or the table of its terms.
        options: causal, window, softcap, scale, pattern, offset, lengths.
        pairs: who sees whom in the judged sequence by positions, `t s`, from the words of the contract.
        apart: the key's position minus the query's there, `t s`.
        row, group: the judged sequence and key/value head.
        with_grad: whether gradients are asked.
    """

    arrays: Arrays
    options: dict[str, Any]
    pairs: np.ndarray
    apart: np.ndarray
    row: int
    group: int
    with_grad: bool
    dy: np.ndarray

    @property
    def heads(self) -> slice:
        r = self.arrays["q"].shape[2] // self.arrays["k"].shape[2]
        return slice(self.group * r, self.group * r + r)

    @property
    def num_scores(self) -> int:
        (b, t, h, _), s = self.arrays["q"].shape, self.arrays["k"].shape[1]
        return b * h * t * s

    def __str__(self) -> str:
        shapes = {name: x.shape for name, x in self.arrays.items()}
        asked = {name: x for name, x in self.options.items() if x is not None and x is not False}
        return f"{shapes}, {self.dy.dtype}, {asked}, judged {self.row, self.group}, gradients {self.with_grad}"


def sizes(rng: np.random.Generator) -> tuple[int, int, int, int, int]:
    """Sequences, queries, keys, heads, key/value heads."""
    b, t, s = (int(2 ** rng.uniform(0, np.log2(most + 1))) for most in (32, 512, 512))
    near_t, near_s = (int(n) for n in rng.integers(48, 160, 2))  # where thresholds lie, in few numbers
    t, s = ((t, s), (s, s), (512, s), (t, 512), (1, s), *[(near_t, near_s)] * 5)[rng.integers(10)]
    h = int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16]))
    g = int(rng.choice([n for n in range(1, h + 1) if h % n == 0]))
    most = MOST_SCORES * (4 if rng.random() < 1 / 12 else 1)
    return max(1, min(b, most // (h * t * s))), t, s, h, g


def drawn(seed: int) -> Call:
    """The call of a seed; one in three is float64."""
    rng = np.random.default_rng([seed, 33])
    (b, t, s, h, g), dtype = sizes(rng), ("float32", "float64", "float32")[seed % 3]
    width = int(rng.choice([4, 8, 16, 32]))
    v = width if rng.random() < 0.8 else int(rng.choice([5, 64]))
    arrays: Arrays = {
        name: rng.normal(size=shape)
        for name, shape in {"q": (b, t, h, width), "k": (b, s, g, width), "v": (b, s, g, v)}.items()
    }

    most = rng.random()  # some calls ask for much, and some for nothing or one thing

    def some(share: float) -> bool:
        return bool(rng.random() < share)

    def asks(share: float) -> bool:
        return some(2 * most**2 * share)

    def of_scores() -> tuple[int, ...]:
        return tuple(n if own else 1 for n, own in zip((b, h, t, s), rng.random(4) < 0.6, strict=True))

    if asks(0.3):
        near = np.abs(np.arange(s) - (np.arange(t)[:, None] + (s - t))) < rng.integers(1, max(s, t) + 1)
        masks = rng.random(of_scores()) < 0.8, np.arange(s) >= rng.integers(0, s, (b, 1, 1, 1)), ~near[None, None]
        arrays["mask"] = masks[rng.integers(3)]
    if asks(0.3):
        arrays["bias"] = rng.normal(size=of_scores())
        arrays["bias"][..., rng.random(arrays["bias"].shape[-1]) < 0.1] = -np.inf
    if asks(0.2):
        arrays["sinks"] = rng.normal(size=h)
    if some(0.4):
        steep = float(rng.choice([1, 1, 8, 300]))  # some weights are then too small for their type
        arrays |= (
            {"slopes": steep * rng.uniform(0.01, 0.9, h)} if some(0.5) else {"table": steep * rng.normal(size=(6, h))}
        )
    options: dict[str, Any] = {"causal": some(0.3), "softcap": 2.0 if asks(0.15) else None, "window": None}
    if asks(0.25):
        options["window"] = (int(rng.integers(s)), int(rng.integers(t)) if some(0.5) else None)
    row, position = int(rng.integers(b)), np.arange(t)[:, None] + (s - t)
    pairs: Any = True
    if asks(0.2):
        options["pattern"], shown = kernels.drawn_pattern(rng, b, t, s)
        pairs = np.broadcast_to(shown, (b, 1, t, s))[row, 0]
    elif asks(0.25):
        offset = rng.integers(-3, s + 3, b) if some(0.7) else rng.integers(s, 3 * s + t, b)
        options["offset"] = offset if some(0.5) else int(offset[0])
        position = np.arange(t)[:, None] + (offset[row] if np.ndim(options["offset"]) else offset[0])
    if asks(0.15):
        options["lengths"] = rng.integers(0, s + 1, b)
        pairs = pairs & (np.arange(s) < options["lengths"][row])
    apart, (left, right) = np.arange(s) - position, options["window"] or (None, None)
    pairs = pairs & (apart >= (-np.inf if left is None else -left)) & (apart <= (np.inf if right is None else right))
    pairs = pairs & (apart <= (0 if options["causal"] else np.inf))
    dy, group = rng.normal(size=(b, t, h, v)), int(rng.integers(g))
    arrays = {name: x if x.dtype == bool else x.astype(dtype) for name, x in arrays.items()}
    call = Call(arrays, options, pairs, apart, row, group, some(0.7), dy.astype(dtype))
    if any(name in SHARED for name in arrays):
        kept = np.zeros((b, 1, h, 1), bool)
        kept[row, :, call.heads] = True
        call = replace(call, dy=np.where(kept, call.dy, 0).astype(dtype))
    return call


def judged_part(call: Call, arrays: Arrays) -> Arrays:
    """What of the arrays of a call, or of its results, belongs to the judged key/value head of the judged sequence."""
    at = {"q": call.heads, "context": call.heads, "k": slice(call.group, call.group + 1)}
    at["v"] = at["k"]
    row, found = slice(call.row, call.row + 1), {}
    for label, x in arrays.items():
        name = label.removeprefix("d").removesuffix(" alone")
        if name in at:
            found[label] = x[row, :, at[name]]
        elif name in ("mask", "bias"):
            found[label] = x[row if x.shape[0] > 1 else slice(None), call.heads if x.shape[1] > 1 else slice(None)]
        else:
            found[label] = x[..., call.heads]
    return found


def expected(call: Call, tree: str) -> dict[str, Any]:
    """What the textbook gives the judged head by a mask and a bias by pairs, with bounds for a tree's fast path."""
    part = judged_part(call, call.arrays)
    exact: dict[str, Any] = {name: x if x.dtype == bool else ErrArray(x, 0.0) for name, x in part.items()}
    slopes, table, bias, mask = (exact.pop(name, None) for name in ("slopes", "table", "bias", "mask"))
    shape = (1, part["q"].shape[2], *call.pairs.shape)
    with precision(fast_precision_of(tree, call.dy.dtype.name)), np.errstate(all="ignore"):
        added: Any = None
        if slopes is not None:
            added = -slopes[:, None, None] * abs(call.apart).astype(float)
        if table is not None:
            added = table.swapaxes(0, 1)[:, buckets(call.apart)]
        if bias is not None:
            added = bias if added is None else added + bias
        if added is not None:
            exact["bias"] = added + ErrArray(np.zeros(shape), 0.0)
        exact["mask"] = np.broadcast_to(call.pairs if mask is None else call.pairs & mask, shape)
        options = {"scale": None, "softcap": call.options["softcap"]}
        dy = ErrArray(call.dy[call.row : call.row + 1, :, call.heads], 0.0)
        want = kernels.by_numpy(exact, dy, options, "textbook")
        dpairs: Any = want.pop("dbias", None)
        if bias is not None:
            axes = tuple(axis for axis, n in enumerate(bias.shape) if n == 1)
            want["dbias"] = np.sum(dpairs, axis=axes).reshape(bias.shape) if axes else dpairs
        if slopes is not None:
            want["dslopes"] = -np.sum(dpairs * abs(call.apart).astype(float), axis=(0, 2, 3))
        if table is not None:
            in_bucket = [(buckets(call.apart) == i).astype(float) for i in range(6)]
            sums = [np.sum(dpairs * x, axis=(0, 2, 3)) for x in in_bucket]
            want["dtable"] = np.stack(sums)
    return want


def found(call: Call, tree_name: str, compiler_options: Mapping[str, Any] | None = None) -> Arrays:
    """What a tree gives, forward and, where the call asks for gradients, backward.

    JAX gets every array as an argument, masks and those of a pattern too: of a constant its compiler works out all that
    follows, for half a minute. The compiler's options are those of `jax.jit`.
    """
    tree, pattern = TREES[tree_name], call.options.get("pattern")
    jit = partial(jax.jit, compiler_options=None if compiler_options is None else dict(compiler_options))
    arrays = call.arrays | {name: x for name, x in call.options.items() if isinstance(x, np.ndarray)}
    rest = {name: x for name, x in call.options.items() if name not in arrays}
    floats = {name: tree.array(x) for name, x in arrays.items() if x.dtype.kind == "f"}
    others = {name: tree.array(x) for name, x in arrays.items() if x.dtype.kind != "f"}
    of_pattern = [tree.array(x) for _, x in pattern.arrays()] if pattern is not None else []

    def given(floats: Any, others: Any, of_pattern: Any) -> dict[str, Any]:
        named, terms, unread = rest | floats | others, tree.package.terms, iter(of_pattern)
        for name, term in (("slopes", terms.Slopes), ("table", lambda x: terms.Table(x, buckets))):
            named |= {"terms": term(named.pop(name))} if name in named else {}
        return named | ({} if pattern is None else {"pattern": pattern.map(lambda axes, x: next(unread))})

    def context_of(floats: Any, others: Any = others, of_pattern: Any = of_pattern) -> Any:
        return tree.package.attend(**given(floats, others, of_pattern))[0]

    grads: dict[str, Any] = {}
    more: dict[str, Any] = {}
    if tree_name == "numpy":
        if not call.with_grad:
            return {"context": context_of(floats)}
        (context, _), pull = tree.package.value_and_vjp(tree.package.attend, **given(floats, others, of_pattern))
        grads = dict(pull(call.dy).inputs)
        grads |= grads.pop("terms", {})
    elif tree_name == "torch":
        with torch.no_grad():
            alone = context_of(floats)
        if not call.with_grad:
            return {"context": tree.numpy(alone)}
        leaves, more = {name: x.requires_grad_() for name, x in floats.items()}, {"context alone": alone}
        context = context_of(leaves)
        grads = dict(zip(leaves, torch.autograd.grad(context, [*leaves.values()], tree.array(call.dy)), strict=True))
    elif call.with_grad:

        def with_grads(floats: Any, others: Any, of_pattern: Any, dy: Any) -> Any:
            context, pull = jax.vjp(lambda x: context_of(x, others, of_pattern), floats)
            return context, pull(dy)[0]

        compiled = jit(with_grads)
        context, grads = compiled(floats, others, of_pattern, tree.array(call.dy))
    else:
        context = jit(context_of)(floats, others, of_pattern)
    results = {"context": context} | more | {f"d{name}": x for name, x in grads.items()}
    return {name: tree.numpy(x) for name, x in results.items()}


def verdict(
    seed: int,
    tree: str,
    setting: Mapping[str, Any] = MappingProxyType({}),
    compiler_options: Mapping[str, Any] | None = None,
) -> str | None:
    """What is wrong with the call of a seed in a tree, whose kernels may have other constants; None for nothing."""
    call = drawn(seed)
    try:
        with kernels.blocks(TREES[tree].package.__name__, setting):
            got = found(call, tree, compiler_options)
    except Exception as error:  # whatever it is, it is what is looked for
        return f"{tree}, seed {seed}: {type(error).__name__}: {error}; {call}"
    want = expected(call, tree)
    part = judged_part(call, got)
    ratios = {name: ratio(x, want[name.removesuffix(" alone")]) for name, x in part.items()}
    ratios |= {name: np.inf for name, x in got.items() if not np.isfinite(x).all()}
    ratios |= {name: np.inf for name in want if call.with_grad and name not in got}
    return None if max(ratios.values()) <= 1 else f"{tree}, seed {seed}: {ratios}; {call}"


def main(arguments: list[str], write: Callable[[str], Any] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", choices=list(TREES))
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    asked = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    start, wrong, done = time.monotonic(), [], 0
    try:
        for seed in range(asked.first, asked.first + asked.cases):
            said = verdict(seed, asked.tree, compiler_options=None if seed % 8 == 0 else QUICK_TO_COMPILE)
            if said is not None:
                wrong.append(said)
                write(said)
            done += 1
            if asked.tree == "jax" and done % 50 == 0:
                jax.clear_caches()
            if done % 100 == 0:
                write(f"{done} cases, {len(wrong)} wrong, {time.monotonic() - start:.0f} s")
    finally:  # an interruption leaves a sum, too
        rest = asked.cases - done
        goes_on = f"; to go on: --first {asked.first + done} --cases {rest}" if rest else ""
        write(f"{asked.tree}: {done} cases from seed {asked.first}, {len(wrong)} wrong{goes_on}")
    return min(1, len(wrong))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:], lambda text: print(text, flush=True)))
