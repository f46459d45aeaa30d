"""The fast path of `attend` in JAX, with blocks so small that its loops and the edges of its blocks are run."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo

from attn_jax import attend
from attn_jax.kernels import cudnn, flash
from attn_jax.ops import einsum, linear
from attn_jax.ops.choices import largest_indices
from attn_np.attention.attend import attend as reference
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.kernels import PATTERN_KINDS, drawn_pattern, visible
from parity_tests.tests.inputs import Arrays
from parity_tests.tests.kernels.test_attend import context_shape, given, held, judged
from parity_tests.tests.witness import cotangent

# Number of key/value heads, the options, the arrays beside q, k and v, and which axes of these have one entry.
CASES: dict[str, tuple[int, dict[str, Any], str, dict[str, tuple[int, ...]]]] = {
    "plain": (6, {}, "", {}),
    "mask": (2, {}, "mask", {}),
    "causal": (2, {"causal": True, "scale": 0.375}, "mask", {"mask": (1, 2)}),
    "window": (2, {"window": (3, None)}, "", {}),
    "all": (3, {"window": (2, 1), "softcap": 1.5}, "mask bias sinks", {}),
    "broadcast": (1, {"window": (None, 1)}, "mask bias", {"mask": (1,), "bias": (0, 2)}),
}


@pytest.fixture(params=["small blocks", "few queries", "one block"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small blocks":
        small_blocks(monkeypatch)
    elif request.param == "few queries":
        few_queries(monkeypatch)


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two queries and three keys of two heads: 5 queries and 7 keys fill neither the last block nor the second."""
    sizes = {
        "ONE_BLOCK_SCORES": 0,
        "ONE_BLOCK_HEAD_SCORES": 0,
        "SHORT_QUERIES": 0,
        "MAX_ROWS": 2,
        "WINDOW_BLOCK_QUERIES": 2,
        "MIN_KEYS": 3,
        "MIN_PRODUCT_MULTIPLICATIONS": 0,
        "PATTERN_BLOCK": 3,
        "QUERY_PATTERN_BLOCK": 3,
        "QUERY_MULTIPLE": 1,
    }
    for name, n in sizes.items():
        monkeypatch.setattr(flash, name, n)


def few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three keys at a time, of which the last blocks have two again."""
    monkeypatch.setattr(flash, "SHORT_KEY_BLOCK", 3)
    monkeypatch.setattr(flash, "SHORT_UNCUT_BLOCKS", 0)


def drawn(case: str) -> tuple[Arrays, dict[str, Any]]:
    groups, options, names, ones = CASES[case]
    inputs = given(groups, names)
    for name, axes in ones.items():
        inputs[name] = inputs[name][tuple(slice(1) if axis in axes else slice(None) for axis in range(4))]
    if "bias" in inputs:
        inputs["bias"][..., 5] = -np.inf
    return inputs, options


def fused(inputs: Arrays, **options: Any) -> dict[str, Any]:
    """Context and gradients of the fast path."""
    leaves = {name: jnp.asarray(x) for name, x in inputs.items() if x.dtype.kind == "f"}
    rest = {name: jnp.asarray(x) for name, x in inputs.items() if name not in leaves}

    def call(leaves: Any) -> Any:
        return attend(**leaves, **rest, **options, implementation="fused")[0]

    context, pull = jax.vjp(call, leaves)
    (found,) = pull(jnp.asarray(cotangent(context_shape(inputs)), context.dtype))
    return {"context": np.asarray(context)} | {f"d{name}": np.asarray(g) for name, g in found.items()}


@pytest.mark.parametrize("case", CASES)
def test_context_and_gradients(case: str, blocks: None) -> None:
    inputs, options = drawn(case)
    want = held(inputs, options)
    want.pop("weights")
    judged(fused(inputs, **options), want)


def test_what_nobody_sees_leaks_nowhere(blocks: None) -> None:
    inputs, options = drawn("all")
    clean = fused(inputs, **options)
    unseen = np.zeros((2, 7), bool)
    unseen[:, 5], unseen[1, 4] = True, True
    inputs["k"][unseen], inputs["v"][unseen] = np.nan, np.inf
    inputs["q"][0, 2, -1] = np.nan
    for name, x in fused(inputs, **options).items():
        assert np.array_equal(x, clean[name]), name


def test_hidden_blocks_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is multiplied by a weight of 0 leaves its NaN; what is not in the loop cannot."""
    small_blocks(monkeypatch)
    inputs = given(2)
    inputs["v"][:, -1] = np.nan
    y = fused(inputs, causal=True)["context"]
    assert np.isfinite(y[:, :2]).all()
    assert np.isnan(y[:, -1]).all()
    plan = flash.Plan(8192, 8192, 1, 512, 256, False, 255, 0, 1.0, None, None)
    assert sum(int(end - first) for first, end in map(plan.key_block_range, range(plan.num_query_blocks))) == 2 + 15 * 3


def test_few_queries_read_no_further_than_the_last_key_that_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    few_queries(monkeypatch)
    inputs = given(2, "mask")
    for seen, steps in ((1, 1), (3, 1), (4, 2), (7, 3)):
        inputs["mask"][...] = np.arange(7) == seen - 1
        arrays: dict[str, Any] = {name: jnp.asarray(x) for name, x in inputs.items()}
        taken: list[int] = []

        def loop(start: Any, end: Any, step: Any, carry: Any, taken: list[int] = taken) -> Any:
            for j in range(int(start), int(end)):
                taken.append(j)
                carry = step(j, carry)
            return carry

        with monkeypatch.context() as patch, jax.disable_jit():
            patch.setattr(jax.lax, "fori_loop", loop)
            y, _ = attend(**arrays, implementation="fused")
        assert taken == list(range(steps))
        values = np.repeat(inputs["v"][:, seen - 1 : seen], 5, 1)
        assert np.array_equal(y, np.repeat(values, y.shape[2] // values.shape[2], 2))


def last_query(case: str) -> tuple[Arrays, dict[str, Any]]:
    inputs, options = drawn(case)
    cut = {"q": np.s_[:, -1:], "mask": np.s_[..., -1:, :], "bias": np.s_[..., -1:, :]}
    return {name: x[cut.get(name, ...)] for name, x in inputs.items()}, options


@pytest.mark.parametrize("seen", range(8))
@pytest.mark.parametrize("case", CASES)
def test_one_query(case: str, seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    few_queries(monkeypatch)
    inputs, options = last_query(case)
    if "mask" in inputs:
        inputs["mask"] = inputs["mask"] & (np.arange(7) < seen)
    want = held(inputs, options)
    want.pop("weights")
    judged(fused(inputs, **options), want)
    if "mask" in inputs:  # what nobody sees leaks nowhere, and what lies beyond it is not read
        clean = fused(inputs, **options)["context"]
        inputs["k"][:, seen:], inputs["v"][:, seen:] = np.nan, np.inf
        assert np.array_equal(fused(inputs, **options)["context"], clean)


@pytest.mark.parametrize("make", [small_blocks, few_queries])
@pytest.mark.parametrize("name", ["bias", "sinks"])
def test_a_wider_bias_or_sinks_is_taken_in_the_type_of_the_queries(
    name: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(monkeypatch)
    inputs, options = drawn("all")
    arrays: dict[str, Any] = {
        n: jnp.asarray(x, jnp.float32 if x.dtype.kind == "f" else None) for n, x in inputs.items()
    }
    wider = arrays | {name: arrays[name].astype(jnp.float64)}

    def total(x: Any, given: dict[str, Any]) -> Any:
        return attend(**given | {name: x}, **options, implementation="fused")[0].sum()

    (want, dwant), (got, dgot) = (jax.value_and_grad(total)(some[name], some) for some in (arrays, wider))
    assert (got.dtype, dgot.dtype) == (jnp.float32, jnp.float64)
    assert np.array_equal(got, want)
    assert np.array_equal(dgot, dwant)


@pytest.mark.parametrize("make", [small_blocks, few_queries])
def test_vmap(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make(monkeypatch)
    inputs, options = drawn("causal")
    both = {name: jnp.stack([jnp.asarray(x), jnp.flip(jnp.asarray(x), 0)]) for name, x in inputs.items()}

    def context(given: Any) -> Any:
        return attend(**given, **options, implementation="fused")[0]

    got = jax.vmap(context)(both)
    one = fused(inputs, **options)["context"]
    assert np.array_equal(got, np.stack([one, one[::-1]]))


@pytest.mark.parametrize("window", [None, (2, None)])
def test_arguments_for_cudnn(window: tuple[int, None] | None) -> None:
    """JAX's own function by XLA takes the arguments that it would pass to cuDNN."""
    inputs = {name: x.astype(np.float32) for name, x in given(2).items()}
    inputs["k"], inputs["v"] = inputs["k"][:, :5], inputs["v"][:, :5, :, :3]
    left = None if window is None else window[0]
    q, k, v = (jnp.asarray(inputs[name]) for name in "qkv")
    y = cudnn.attend_with_cudnn(q, k, v, left, 0, 0.375, "xla")
    with precision(precision_of("float32")):
        arrays: dict[str, Any] = {name: ErrArray(inputs[name].astype(np.float64), 0.0) for name in "qkv"}
        want: Any = reference(**arrays, causal=True, window=window, scale=0.375)[0]
    judged({"context": np.asarray(y)}, {"context": want})


# Of which JAX does not promise that later versions have them.
CUDNN_CALLS = ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward")


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX takes this machine for one with a GPU, as far as it lowers programs."""
    monkeypatch.setattr(jax, "devices", lambda *_: [SimpleNamespace(compute_capability="9.0")])
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda _: True)


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [None, (2, None)])
def test_cudnn_is_in_programs_for_cuda_alone(dtype: str, window: tuple[int, None] | None) -> None:
    """Forward and backward, whatever devices are here."""
    q = jnp.asarray(np.random.default_rng(0).normal(size=(1, 8, 2, 8)), dtype)
    total = lambda q: flash_attend(q, window).astype("float32").sum()  # noqa: E731
    calls = [jax.export.DisabledSafetyCheck.custom_call(name) for name in CUDNN_CALLS]
    programs = {
        name: jax.export.export(jax.jit(jax.value_and_grad(total)), platforms=[name], disabled_checks=calls)(q)
        for name in ("cpu", "cuda", "tpu")
    }
    on_cuda = {name for name, program in programs.items() if "__cudnn$fmha" in program.mlir_module()}
    assert on_cuda == ({"cuda"} if dtype == "bfloat16" else set())


def flash_attend(q: Any, window: tuple[int, None] | None) -> Any:
    return attend(q, q, q, causal=True, window=window, implementation="fused")[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_cudnn_without_a_gpu(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q = jnp.zeros((1, 2, 4, 8), dtype, device=jax.devices("cpu")[0])
    monkeypatch.setattr(jax, "devices", lambda *_: [SimpleNamespace()])
    assert not cudnn.cudnn_supports(q, q, q, None, None)


def close_to(got: Any, want: Any) -> None:
    """Within what some thousand roundings of numbers of their size make, in float64."""
    np.testing.assert_array_less(np.abs(got - want), 2.0**-42 * (1 + np.abs(want)))


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 1.5}, {"sinks": [0.5, -1.0, 0.0, 2.0]}], ids=str)
def test_hessians_of_one_block(options: dict[str, Any]) -> None:
    """Over queries, keys and values, whose heads are shared, and sinks; compiled, too: XLA was once wrong there."""
    rng = np.random.default_rng(0)
    q, k, v, along = (jnp.asarray(rng.normal(size=(2, t, h, 3))) for t, h in ((5, 4), (7, 2), (7, 2), (5, 4)))

    floats = [q, k, v] + ([jnp.asarray(options["sinks"])] if "sinks" in options else [])

    def total(floats: Any, implementation: str) -> Any:
        given = options | dict(zip(("q", "k", "v", "sinks"), floats, strict=False))
        return jnp.sum(attend(**given, implementation=implementation)[0] ** 2 * along)

    hessian = jax.jit(jax.hessian(total), static_argnums=1)
    got, want = (hessian(floats, which) for which in ("fused", "textbook"))
    jax.tree.map(close_to, got, want)


@pytest.mark.parametrize("spec", ["btd,dhk->bthk", "bthv,hvd->btd", "btd,fde->btfe"])
def test_projection_and_its_derivatives(spec: str) -> None:
    sizes = {"b": 2, "t": 3, "d": 5, "h": 2, "k": 3, "v": 4, "f": 2, "e": 7}
    factors, out = spec.split("->")
    left, right = factors.split(",")
    bias = [letter for letter in out if letter not in left]
    shapes = [tuple(sizes[letter] for letter in letters) for letters in (left, right, bias)]
    given = [jnp.asarray(np.random.default_rng(n).standard_normal(shape)) for n, shape in enumerate(shapes)]
    total = lambda *given: jnp.sum(jnp.sin(linear(spec, *given)))  # noqa: E731
    want = lambda x, w, b: jnp.sum(jnp.sin(jnp.einsum(spec, x, w) + b))  # noqa: E731
    for derivative in (jax.grad, jax.hessian):
        got, expected = (jax.jit(derivative(f, (0, 1, 2)))(*given) for f in (total, want))
        jax.tree.map(close_to, got, expected)


def test_what_is_fixed_costs_no_product() -> None:
    x, weight = jnp.ones((1, 3, 5)), jnp.ones((5, 2, 4))
    project = lambda x, weight: jnp.sum(linear("btd,dhk->bthk", x, weight, None))  # noqa: E731
    for which, products in (((0, 1), 3), (0, 2), (1, 2)):
        assert str(jax.make_jaxpr(jax.grad(project, which))(x, weight)).count("dot_general") == products


@pytest.mark.parametrize("shapes", [((2, 0, 4), (4, 2, 3)), ((0, 3, 4), (4, 2, 3)), ((2, 3, 4), (4, 0, 3))], ids=str)
def test_a_projection_of_nothing(shapes: tuple[tuple[int, ...], ...]) -> None:
    x, weight = (jnp.ones(shape) for shape in shapes)
    y, pull = jax.vjp(lambda x, weight: linear("btd,dhk->bthk", x, weight, None), x, weight)
    assert y.shape == (*x.shape[:2], *weight.shape[1:])
    assert [found.shape for found in pull(y)] == [x.shape, weight.shape]


@pytest.mark.parametrize(("t", "s"), [(5, 5), (4, 7), (7, 4)])
@pytest.mark.parametrize("small", [False, True])
def test_edges_of_windows(small: bool, t: int, s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries of 0 weigh what they see alike, and values that are columns of the identity say what that is.

    What a window hides from all is NaN.
    """
    if small:
        small_blocks(monkeypatch)
    q, k, v = jnp.zeros((1, t, 1, 2)), jnp.ones((1, s, 1, 2)), jnp.eye(s)[None, :, None]
    edges = sorted({n for n in (t - 2, t - 1, t, s - 2, s - 1, s) if n >= 0})
    with jax.disable_jit():
        for window in [x for n in edges for x in ((n, None), (None, n), (n, n))]:
            seen = visible(None, (1, 1, t, s), False, window)[0, 0]
            seen_by_any = jnp.asarray(seen.any(0))[None, :, None, None]
            hidden: Any = {"k": jnp.where(seen_by_any, k, jnp.nan), "v": jnp.where(seen_by_any, v, jnp.nan)}
            context = np.asarray(attend(q, **hidden, window=window, implementation="fused")[0])[0, :, 0]
            np.testing.assert_array_equal(context > 0, seen, err_msg=str(window))


# Of each kind first the size that is asked by default, which every second pair of kinds shares.
SIZES = ((5, 7, 1), (7, 5, 3))
KINDS_AND_SIZES = [(kind, *SIZES[(kind // 2 + other) % 2]) for kind in range(PATTERN_KINDS) for other in (0, 1)]


@pytest.mark.parametrize(("kind", "t", "s", "shared"), KINDS_AND_SIZES)
def test_what_a_block_shows_is_its_part_of_the_whole(kind: int, t: int, s: int, shared: int) -> None:
    """Pattern, window, mask and bias of every block, of rows and keys that the last blocks do not fill."""
    rng = np.random.default_rng(kind)
    pattern, pairs = drawn_pattern(rng, 2, t, s, kind)
    inputs = {"mask": rng.random((2, 2 * shared, t, s)) < 0.7, "bias": rng.choice([0.0, -np.inf], (t, s))}
    left, right = (None, 2) if kind % 2 else (3, None)
    seen = visible(inputs["mask"], (2, 2 * shared, t, s), False, (left, right)) & pairs & (inputs["bias"] == 0)
    bare = pattern.map(lambda axes, x: None)
    plan = flash.Plan(t, s, shared, min(t, 2), 3, False, left, right, 1.0, None, bare)
    mask, bias = (flash._grouped(plan, jnp.asarray(x), 2) for x in inputs.values())
    places = tuple(jnp.asarray(x) for _, x in pattern.arrays())
    for i, together in product(range(plan.num_query_blocks), (True, False)):
        whole = np.zeros((2, 2 * shared, plan.block_queries, s), bool)
        first, end, key_block_at = flash._key_loop(plan, places, jnp.zeros(1), together)(i)
        for n in range(first, int(end)):
            j = key_block_at(n)
            bias_part, mask_part = (flash._block_of(plan, x, i, j) for x in (bias, mask))
            allowed = np.asarray(flash._visible(plan, i, j, bias_part, mask_part, places))
            allowed = allowed.reshape(2, 2 * shared, plan.block_queries, plan.block_keys)
            for row, start in enumerate(np.broadcast_to(plan.key_start(j), 2)):
                assert not (whole[row, ..., start : start + plan.block_keys] & allowed[row]).any()
                whole[row, ..., start : start + plan.block_keys] |= allowed[row]
        rows = seen[:, :, i * plan.block_queries : (i + 1) * plan.block_queries]
        assert np.array_equal(whole[:, :, : rows.shape[2]], rows), (kind, t, s, i)
        assert not whole[:, :, rows.shape[2] :].any()


@pytest.mark.parametrize("sizes", [{}, {"b": 1}, {"s": 1}, {"b": 1, "t": 1}])
@pytest.mark.parametrize("spec", ["bgts,bhts->gh", "bhts,bshv->bthv", "bthk,bshk->bhts", "tb,bs->st"])
def test_sums_over_axes_of_one(spec: str, sizes: dict[str, int]) -> None:
    """Whole numbers, which every order of additions gives."""
    factors, rng = spec.partition("->")[0].split(","), np.random.default_rng(0)
    known = {"b": 2, "g": 3, "h": 4, "t": 5, "s": 6, "k": 7, "v": 8} | sizes
    a, b = (rng.integers(-9, 10, size=[known[letter] for letter in x]).astype("float32") for x in factors)
    assert np.array_equal(einsum(spec, jnp.asarray(a), jnp.asarray(b)), np.einsum(spec, a, b))


@pytest.mark.parametrize("devices", [1, 2])
def test_the_largest_are_the_same_for_any_number_of_devices(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equals the first, and zeros of either sign are equal, as NaN of either sign are: these come first."""
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    x = np.random.default_rng(0).integers(-1, 3, size=(7, 40)).astype(np.float32)
    x[:, ::3] *= -1
    x[0, 3], x[1, 5], x[1, 7] = -np.inf, -np.nan, np.nan
    assert np.signbit(x[x == 0]).any()
    assert not np.signbit(x[x == 0]).all()
    want = np.argsort(-np.where(np.isnan(x), np.inf, x), -1, kind="stable")[:, :30]
    np.testing.assert_array_equal(largest_indices(jnp.asarray(x), 30), want)
