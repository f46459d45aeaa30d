"""What only PyTorch's fast path has: a kernel, blocks or neither, by what is asked, and rules for `vmap` and `grad`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from attn_np import patterns
from attn_torch import attend
from attn_torch.kernels import blocks, sdpa, small
from attn_torch.kernels import flash as kernels
from attn_torch.ops import concrete
from parity_tests.judge.cases import Drawn
from parity_tests.tests.contract import test_semantics
from parity_tests.tests.inputs import TREES, Arrays, first_difference
from parity_tests.tests.kernels import test_kernels
from parity_tests.tests.kernels.test_kernels import CASES, SIZES, V, allowed, fused, given, judged
from parity_tests.tests.witness import cotangent

TORCH = TREES["torch"]
held = partial(test_kernels.held, framework="torch")


@pytest.fixture(params=["whole", "blocks", "small"])
def paths(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch's kernel where it can, and else a block for all; blocks that these sizes fill several times, the last of
    them in part: one head in each, or some; all scores at once.
    """
    if request.param == "small":
        monkeypatch.setattr(sdpa, "supports", lambda *arguments: False)
    else:
        monkeypatch.setattr(kernels, "SMALL_MAX_SCORES", 0)
    if request.param == "blocks":
        monkeypatch.setattr(blocks, "CPU_QUERIES", 3)
        monkeypatch.setattr(blocks, "CPU_SCORES", 70)
    yield


def close_to(got: Any, want: Any) -> None:
    """Within what some hundred roundings of numbers of their size make, in float64."""
    np.testing.assert_array_less(np.abs(got - want), 2.0**-45 * (1 + np.abs(want)))


def as_wide(inputs: Arrays) -> Arrays:
    """Keys as wide as the values: what PyTorch's kernels take."""
    return inputs | {name: inputs[name][..., : inputs["v"].shape[-1]] for name in "qk"}


@pytest.mark.usefixtures("paths")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", SIZES)
def test_pytorchs_path_gives_what_the_textbook_gives(size: str, case: str) -> None:
    inputs, options = given(case, size)
    for some in (inputs, as_wide(inputs)):
        judged(fused(TORCH, some, options), held(some, options))


@pytest.mark.usefixtures("paths")
@pytest.mark.parametrize("case", CASES)
def test_without_gradients(case: str) -> None:
    """Where a path may write over its scores; of one row of a batch, too."""
    inputs, options = given(case)
    one = {name: x[:1] if x.ndim == 4 else x for name, x in inputs.items()}
    for some in (inputs, as_wide(inputs), one):
        found, _ = attend(**TORCH.arrays(some), **options, implementation="fused")
        judged({"context": TORCH.numpy(found)}, {"context": held(some, options)["context"]})


@pytest.mark.usefixtures("paths")
@pytest.mark.parametrize("case", ["mask", "all"])
def test_what_nobody_sees_may_hold_anything(case: str) -> None:
    inputs, options = given(case)
    inputs = as_wide(inputs)
    want, spoilt = held(inputs, options), {name: x.copy() for name, x in inputs.items()}
    spoilt["q"][0, 2], spoilt["k"][1, 4], spoilt["v"][1, 4] = np.nan, np.nan, np.inf
    found = fused(TORCH, spoilt, options)
    judged(found, want)
    assert first_difference(found, fused(TORCH, inputs, options)) is None, "nor choose another kernel"


@pytest.mark.usefixtures("paths")
@pytest.mark.parametrize("hidden", ["query", "key"])
def test_a_query_or_a_key_by_itself_may_hold_anything(hidden: str) -> None:
    """One that sees nobody while all keys are seen, one that nobody sees while all queries see some."""
    inputs = as_wide(given("full")[0])
    mask, names = np.ones((11, 13), bool), "q" if hidden == "query" else "kv"
    mask[(2, slice(None)) if hidden == "query" else (slice(None), 2)] = False
    inputs["mask"] = mask
    spoilt = {name: x.copy() for name, x in inputs.items()}
    for name in names:
        spoilt[name][:, 2] = np.nan
    found = fused(TORCH, spoilt, {})
    judged(found, held(inputs, {}))
    assert first_difference(found, fused(TORCH, inputs, {})) is None


@pytest.mark.usefixtures("paths")
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_a_hidden_score_may_overflow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of finite numbers, in a key that other queries see: selected, not weighed; PyTorch's kernel adds -inf."""
    monkeypatch.setattr(sdpa, "supports", lambda *arguments: False)
    inputs, near = as_wide(given("full")[0]), np.tri(11, 13, 2, dtype=bool)
    inputs["q"][:, 2] = 1e200
    inputs["k"][:, 5] = 1e200
    inputs["q"][:, 3:] = 0.0
    inputs[name] = near if name == "mask" else np.where(near, 0.0, -np.inf)
    found = attend(**TORCH.arrays(inputs), implementation="fused")[0]
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("options", [{"window": (3, 0)}, {"causal": True, "pattern": patterns.Chunks(3, 1)}])
def test_the_column_of_a_sink_is_no_key(options: Any, sinks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in a value stays in the blocks of queries whose keys it is among, and so it is with sinks."""
    monkeypatch.setattr(kernels, "SMALL_MAX_SCORES", 0)
    monkeypatch.setattr(blocks, "CPU_QUERIES", 3)
    rng = np.random.default_rng(0)
    arrays = {name: torch.from_numpy(rng.normal(size=(2, 12, 2, 4))) for name in "qkv"}
    if sinks:
        arrays["sinks"] = torch.from_numpy(rng.normal(size=2))
    for key in range(6):
        v = arrays["v"].clone()
        v[:, key] = torch.nan
        context, _ = attend(**arrays | {"v": v}, **options, implementation="fused")
        assert torch.isfinite(context[:, 9 if key > 2 else 6 if "window" in options else 9 :]).all(), key


@pytest.mark.parametrize("hidden", [np.nan, np.inf])
def test_the_kernel_adds_no_bias_that_a_mask_hides(hidden: float) -> None:
    inputs = as_wide(given("bias")[0])
    inputs["mask"] = near = np.tri(11, 13, 2, dtype=bool)
    clean, spoilt = (inputs | {"bias": np.where(near, inputs["bias"], x)} for x in (0.0, hidden))
    with torch.no_grad():
        found, want = (TORCH.numpy(attend(**TORCH.arrays(x), implementation="fused")[0]) for x in (spoilt, clean))
    assert np.array_equal(found, want)


def test_a_hidden_bias_may_be_nan_where_scores_are_few() -> None:
    inputs, options = given("all")
    want = held(inputs, options)
    near = allowed({name: x for name, x in inputs.items() if name != "bias"}, options)
    inputs["bias"][~near] = np.nan
    found = fused(TORCH, inputs, options)
    judged(found, want)


@pytest.mark.usefixtures("paths")
@pytest.mark.parametrize("case", ["causal", "all"])
def test_mapped_gradients(case: str) -> None:
    """`vmap` of `grad`, with keys, bias and sinks that all calls share and queries that each has."""
    inputs, options = given(case)
    inputs = as_wide(inputs)
    dy = TORCH.array(cotangent((*inputs["q"].shape[:-1], inputs["v"].shape[-1])))
    arrays = TORCH.arrays(inputs)
    q, names = arrays.pop("q"), [name for name, x in arrays.items() if x.is_floating_point()]

    def loss(q: torch.Tensor, *leaves: torch.Tensor) -> torch.Tensor:
        return (attend(q, **arrays | dict(zip(names, leaves, strict=True)), **options)[0] * dy).sum()

    every = vmap(grad(loss, tuple(range(1 + len(names)))), (0, *(None for _ in names)))
    found = every(torch.stack([0.5 * q, q]), *(arrays[name] for name in names))
    for i, factor in enumerate((0.5, 1.0)):
        want = held(inputs | {"q": factor * inputs["q"]}, options)
        del want["context"]
        judged({f"d{name}": TORCH.numpy(x[i]) for name, x in zip(["q", *names], found, strict=True)}, want)


@pytest.mark.usefixtures("paths")
@pytest.mark.parametrize("name", ["q", "k", "v", "mask", "bias", "sinks"])
@pytest.mark.parametrize("rows", [1, 2])
def test_mapped_over_one_array(rows: int, name: str) -> None:
    """`vmap` without gradients: what is mapped must not be written into what is not."""
    inputs, options = given("all")
    inputs = {n: x[:rows] if n in "qkv" or (x.ndim == 4 and len(x) > 1) else x for n, x in inputs.items()}
    arrays = TORCH.arrays(inputs)
    x = arrays.pop(name)
    found = vmap(lambda x: attend(**arrays, **{name: x}, **options, implementation="fused")[0])(torch.stack([x, x]))
    want = held(inputs, options)["context"]
    for context in found:
        judged({"context": TORCH.numpy(context)}, {"context": want})


@pytest.mark.usefixtures("paths")
def test_allowed_scores_that_are_all_minus_infinity_are_nan() -> None:
    """Not 0, as for a query that sees no key; but PyTorch's kernel can't tell one from the other."""
    q, k, v = torch.tensor([[[[1e30]], [[0.0]]]]), torch.full((1, 3, 1, 1), -1e30), torch.ones(1, 3, 1, 1)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    kernel = sdpa.supports(q, k, v, mask[None, None], None, (None, None), 1.0)
    for arrays in ((q, k, v), (q.requires_grad_(), k, v)):
        found = attend(*arrays, mask=mask, softcap=None, scale=1.0)[0].flatten()
        assert found[0] == 0 if kernel else torch.isnan(found[0])
        assert found[1] == 0


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # forward mode's own decompositions use it
@pytest.mark.parametrize("variant", ["qk_norm", "sinks", "alibi", "decoder"])
def test_second_derivatives_of_few_scores(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain operations have them, and forward mode, within the bounds of the textbook."""
    monkeypatch.setattr(sdpa, "supports", lambda *arguments: False)
    case, drawn, direction = test_semantics.asked(variant)
    kept = {name: x for name, x in drawn.inputs.items() if name != "keep"}  # which asks for the textbook
    monkeypatch.setattr(test_semantics, "asked", lambda name: (case, Drawn(kept, drawn.params, 0), direction))
    monkeypatch.setattr(test_semantics, "along", test_semantics.along.__wrapped__)
    monkeypatch.setattr(test_semantics, "textbook", lambda config: {"implementation": "fused"})
    test_semantics.twice(TORCH, variant)


def test_second_derivatives_of_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SMALL_MAX_SCORES", 0)
    inputs, options = given("window")
    arrays = {name: x.requires_grad_() for name, x in TORCH.arrays(inputs).items()}
    y = attend(**arrays, **options)[0]
    (dq,) = torch.autograd.grad((y * y).sum(), arrays["q"], create_graph=True)
    with pytest.raises(NotImplementedError, match="implementation='textbook'"):
        torch.autograd.grad(dq.sum(), arrays["q"])


@pytest.mark.parametrize("learning", [False, True])
def test_a_bias_gets_a_gradient_where_it_asks(learning: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be as large as all scores, which blocks are there to avoid."""
    made: list[Any] = []

    def watch(*arguments: Any) -> Any:
        made.append([x.shape for x in backward(*arguments)[3:]])
        return backward(*arguments)

    backward = blocks.blocks_backward
    monkeypatch.setattr(sdpa, "supports", lambda *arguments: False)
    monkeypatch.setattr(kernels, "SMALL_MAX_SCORES", 0)
    monkeypatch.setattr(blocks, "blocks_backward", watch)
    arrays: dict[str, Any] = TORCH.arrays(given("bias")[0])
    arrays["q"].requires_grad_()
    arrays["bias"].requires_grad_(learning)
    attend(**arrays)[0].sum().backward()
    assert made == [[arrays["bias"].shape] if learning else []]
    assert arrays["bias"].grad is None or learning


PATHS = {
    # positions, what else is asked: which path
    "few queries": (16, {}, "kernel"),
    "many scores": (320, {}, "kernel"),
    "causal": (96, {"causal": True}, "kernel"),
    "window": (16, {"window": (3, None)}, "small"),
    "window, many scores": (320, {"window": (3, None)}, "blocks"),
}


@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("call", PATHS)
def test_which_path(call: str, learning: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    t, options, path = PATHS[call]
    taken: list[str] = []

    def watched(name: str, real: Any) -> Any:
        def watch(*arguments: Any, **more: Any) -> Any:
            taken.append(name)
            return real(*arguments, **more)

        return watch

    for name, room, function in (
        ("small", small, "attend"),
        ("kernel", sdpa, "attend"),
        ("blocks", blocks, "blocks_forward"),
    ):
        monkeypatch.setattr(room, function, watched(name, getattr(room, function)))
    q, k, v = (torch.from_numpy(cotangent((1, t, 6, 5))).float().requires_grad_(learning) for _ in "qkv")
    attend(q, k, v, **options)
    assert taken == [path]


@pytest.mark.parametrize("wide", ["keys", "values"])
@pytest.mark.parametrize(("times", "path"), [(2, "kernel"), (3, "blocks")])
def test_widths_far_apart_go_by_blocks(times: int, path: str, wide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would fill the narrower ones up with zeros."""
    monkeypatch.setattr(kernels, "SMALL_MAX_SCORES", 0)
    taken: list[str] = []
    for name, room, function in (("kernel", sdpa, "attend"), ("blocks", blocks, "blocks_forward")):
        real = getattr(room, function)
        monkeypatch.setattr(room, function, lambda *given, name=name, real=real: (taken.append(name), real(*given))[1])
    q, k, v = (
        torch.from_numpy(cotangent((1, 7, 2, times * 3 if name in wide else 3))) for name in ("keys", "keys", "values")
    )
    found, want = (attend(q, k, v, implementation=how)[0] for how in ("auto", "textbook"))
    assert taken == [path]
    close_to(TORCH.numpy(found), TORCH.numpy(want))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # forward mode's own decompositions use it
@pytest.mark.parametrize("call", PATHS)
def test_forward_mode_of_any_size(call: str) -> None:
    """Where the same call without tangents goes to the kernel or to blocks, which have no rule for them."""
    t, options, _ = PATHS[call]
    q, k, v = torch.from_numpy(cotangent((3, 1, t, 6, 5)))
    attend(q, k, v, **options)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, k)
        found, want = (
            forward_ad.unpack_dual(attend(dual, k, v, **options, implementation=path)[0])
            for path in ("auto", "textbook")
        )
    tangent = jvp(lambda q: attend(q, k, v, **options)[0], (q,), (k,))[1]
    close_to(TORCH.numpy(found.primal), TORCH.numpy(want.primal))
    for x in (found.tangent, tangent):
        close_to(TORCH.numpy(x), TORCH.numpy(want.tangent))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # forward mode's own decompositions use it
@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sinks"])
def test_forward_mode_over_one_array_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have no tangents; without those the call would be cut into blocks."""
    monkeypatch.setattr(kernels, "SMALL_MAX_SCORES", 0)
    inputs, options = given("all")
    inputs["bias"][inputs["bias"] == -np.inf] = -9.0
    arrays: dict[str, Any] = TORCH.arrays(inputs)
    along = torch.from_numpy(cotangent(inputs[name].shape))

    def tangent(path: str) -> np.ndarray:
        call = lambda x: attend(**arrays | {name: x}, **options, implementation=path)[0]  # noqa: E731
        return TORCH.numpy(jvp(call, (arrays[name],), (along,))[1])

    close_to(tangent("auto"), tangent("textbook"))


@pytest.mark.parametrize("call", PATHS)
@pytest.mark.parametrize("masked", [False, True])
def test_what_is_traced_has_no_numbers_to_look_at(masked: bool, call: str) -> None:
    """By `make_fx`, which writes down what is done and does it again with other numbers, and in `FakeTensorMode`."""
    t, options, _ = PATHS[call]
    q, k, v = torch.from_numpy(cotangent((3, 1, t, 6, 5)))
    mask = torch.ones(t, t, dtype=torch.bool).tril(1)
    given = (q, k, v, mask) if masked else (q, k, v)

    def work(q: Any, k: Any, v: Any, *mask: Any) -> torch.Tensor:
        return attend(q, k, v, mask=mask[0] if mask else None, **options)[0]

    other = (0.5 * q, *given[1:])
    for mode in ("real", "fake", "symbolic"):
        written = make_fx(lambda given: work(*given), tracing_mode=mode)(given)
        close_to(TORCH.numpy(written(other)), TORCH.numpy(work(*other)))
    with FakeTensorMode() as fake:
        arrays = [fake.from_tensor(x) for x in given]
        assert work(*arrays).shape == q.shape
        q = arrays[0].requires_grad_()
        assert torch.autograd.grad(work(*arrays).sum(), q)[0].shape == q.shape
    assert not concrete(arrays[0]), "outside the mode, too"


def test_a_product_that_overflows_before_it_is_scaled_is_nan() -> None:
    """Every score of the first query is -inf before a scale that would have made it finite; 0 from PyTorch's kernel."""
    q = torch.tensor([1e20, 1.0], dtype=torch.float32).reshape(1, 2, 1, 1)
    k, v = torch.full((1, 2, 1, 1), -1e20), torch.ones(1, 2, 1, 1)
    for implementation in ("textbook", "fused", "auto"):
        found = attend(q, k, v, scale=1e-10, implementation=implementation)[0].flatten()
        assert torch.isnan(found[0]) if implementation == "textbook" else found[0] == 0
        assert found[1] == 1


def test_arrays_without_numbers_among_others_are_no_cpu_arrays() -> None:
    q, k, v = (torch.from_numpy(cotangent((2, 9, 6, 5))) for _ in "qkv")
    attend(q, k, v)
    for arrays in ((q, k.to("meta"), v), (q, k, v.to("meta"))):
        with pytest.raises(RuntimeError, match=r"(?i)device"):
            attend(*arrays)


@pytest.mark.usefixtures("paths")
def test_values_of_no_width() -> None:
    q, k, v = (torch.randn(3, n, h, w, requires_grad=True) for n, h, w in ((20, 9, 5), (20, 3, 5), (20, 3, 0)))
    context, _ = attend(q, k, v, causal=True)
    assert context.shape == (3, 20, 9, 0)
    context.sum().backward()
    assert all(x.grad is not None and not x.grad.any() for x in (q, k, v))


def test_large_scores_within_what_the_kernel_promises() -> None:
    """Causal, with gradients that the textbook's bound by itself would not grant."""
    inputs = {name: 30.0 * cotangent((1, 9, 2, V)) for name in "qkv"}
    judged(fused(TORCH, inputs, {"causal": True}), held(inputs, {"causal": True}))


@pytest.mark.parametrize("name", ["q", "k", "v", "mask", "bias"])
def test_one_array_may_be_mapped_alone(name: str) -> None:
    """Two of it, the others as they are: what they give one after the other."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {n: torch.from_numpy(rng.normal(size=(1, 9, 2, 4))) for n in "qkv"}
    arrays["mask"], arrays["bias"] = torch.ones(9, 9, dtype=torch.bool).tril(), torch.zeros(9, 9, dtype=torch.float64)
    if name != "bias":
        del arrays["bias"]
    if name in "qkv":
        del arrays["mask"]
    two = torch.stack([arrays[name], arrays[name].flip(1)])

    def call(x: Any, **words: Any) -> Any:
        given: dict[str, Any] = arrays | {name: x} | words
        return attend(**given)[0]

    for got, x in zip(vmap(call)(two), two, strict=True):
        want = call(x, implementation="textbook")
        close_to(TORCH.numpy(got), TORCH.numpy(want))


@pytest.mark.compile
@pytest.mark.parametrize("scale", [-0.5, 0.0])
@pytest.mark.parametrize("learning", [False, True])
def test_a_scale_below_0_hides_what_is_later(learning: bool, scale: float) -> None:
    """PyTorch's kernel hides by -inf before it scales."""
    q, k, v = (torch.from_numpy(cotangent((1, 9, 2, 4))).requires_grad_(learning) for _ in "qkv")
    want = attend(q, k, v, causal=True, scale=scale, implementation="textbook")[0]
    compiled = torch.compile(attend, backend="eager")
    for call in (attend, compiled):
        found = call(q, k, v, causal=True, scale=scale)[0]
        close_to(TORCH.numpy(found), TORCH.numpy(want))


@pytest.mark.parametrize("wrong", [{"causal": [1]}, {"scale": np.array([1.0])}, {"implementation": ["auto"]}], ids=str)
def test_words_without_a_hash_are_refused_by_name(wrong: dict[str, Any]) -> None:
    q = torch.ones(1, 2, 1, 4)
    with pytest.raises(ValueError, match=f"attend: expected {next(iter(wrong))}"):
        attend(q, q, q, **wrong)


@pytest.mark.usefixtures("paths")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("softcap", [2**70, 1e-40])
def test_a_softcap_beyond_the_numbers_of_the_type(softcap: float, masked: bool) -> None:
    """In float32, which holds neither 1 / softcap nor integers of that size: what NumPy's textbook gives."""
    inputs = {name: x.astype(np.float32) for name, x in as_wide(given("mask")[0]).items() if name != "mask"}
    inputs |= {"mask": given("mask")[0]["mask"]} if masked else {}
    with np.errstate(over="ignore"):
        want = held(inputs, {"softcap": float(softcap)}, "float32")
    found = attend(**TORCH.arrays(inputs), softcap=softcap, implementation="fused")[0]
    judged({"context": TORCH.numpy(found)}, {"context": want["context"]})


@pytest.mark.usefixtures("paths")
@pytest.mark.parametrize("case", ["full", "window", "all"])
def test_autocast_rounds_nothing_outside_pytorchs_kernel(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "supports", lambda *arguments: False)
    inputs, options = given(case)
    arrays: dict[str, Any] = {n: x.float() if x.is_floating_point() else x for n, x in TORCH.arrays(inputs).items()}
    want = attend(**arrays, **options)[0]
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(**arrays, **options)[0]
    assert found.dtype == torch.float32
    assert torch.equal(found, want)


@pytest.mark.compile
@pytest.mark.parametrize("learning", [False, True])
def test_blocks_of_any_length_are_two_graphs_at_most(learning: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SMALL_MAX_SCORES", 0)
    torch.compiler.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, backend=graphs, fullgraph=True, dynamic=True)
    for t in (19, 23, 29):
        q, k, v = (torch.from_numpy(cotangent((2, t, 6, 5))).requires_grad_(learning) for _ in "qkv")
        found, want = (call(q, k, v, window=(3, 2), softcap=1.5)[0] for call in (compiled, attend))
        assert torch.equal(found, want)
        if learning:
            got, expected = (torch.autograd.grad(y.sum(), (q, k, v)) for y in (found, want))
            assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))
    assert graphs.frame_count <= 2
