"""Input that cannot be right is refused: by the same class with the same words in all three trees."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from attn_np import contract
from attn_np.attention import row_blocks
from attn_np.contract import Arg, Config, _attend, _base, mha
from parity_tests.tests.everything import WHOLE
from parity_tests.tests.inputs import EXAMPLES, TREES, Arrays, Tree, config_of, flat, inputs_for

pytestmark = pytest.mark.usefixtures("unchecked")

VARIANTS = contract.variants()
KNOWN = (*VARIANTS, *contract.presets())
JAX = TREES["jax"].package
SENTENCE = r"{who}: expected .+, got .+[;,] .+"


def refused(call: Callable[[], Any], error: type[Exception], who: str) -> str:
    """The text of the error that a call raises: of this very class, in the house's words."""
    with pytest.raises(error) as caught:
        call()
    assert caught.type is error
    text = str(caught.value)
    assert re.fullmatch(SENTENCE.format(who=who), text, flags=re.DOTALL), text
    return text


def refused_by_all(call: Callable[[Tree], Any], error: type[Exception], who: str) -> str:
    """The text with which every tree refuses; the name of a tree's own array type reads `array`."""
    texts = {}
    for tree in TREES.values():
        text = refused(lambda tree=tree: call(tree), error, who)
        texts[tree.name] = text.replace(tree.array_type, "array")
    assert len(set(texts.values())) == 1, texts
    return texts["numpy"]


# Configs --------------------------------------------------------------------------------------------------------------


def hints(variant: str, *wanted: str) -> list[str]:
    """Fields whose annotation is one of those wanted."""
    found = contract.get(variant).Config.__dataclass_fields__.values()
    return [
        f.name for f in found if str(f.type if "[" in str(f.type) else getattr(f.type, "__name__", f.type)) in wanted
    ]


NUMBERS = {
    "int": ("int", "int | None"),
    "float": ("float",),
    "number": ("float | None",),
    "str": ("str",),
    "word": ("str | None",),
    "word or count": ("str | int",),
    "bool": ("bool",),
    "flag": ("bool | None",),
    "factors": ("tuple[float, ...] | None",),
    "counts": ("tuple[int, ...] | None",),
    "one or two counts": ("int | tuple[int, int]", "int | tuple[int, int] | None"),
    "words": ("tuple[str, ...]",),
    "function": ("str | collections.abc.Callable[[typing.Any], typing.Any]",),
}
WRONG: dict[str, tuple[Any, ...]] = {
    "int": (-1, True, 2.0, "3", [3]),
    "float": (float("nan"), float("inf"), -float("inf"), True, "1", None),
    "number": (float("nan"), float("inf"), -float("inf"), True, "1"),
    "str": ("frobnicate", 3, None),
    "word": ("frobnicate", 3),
    "word or count": ("frobnicate", 0, True, 2.0, None),
    "factors": (3, "ab", (1.0, "2")),
    "counts": (3, "ab", (1, 2.0), (1, "2"), (0, 1), (-1,), (True, 2)),
    "one or two counts": (-1, True, 2.0, "3", (1,), (1, 2, 3), (1, 2.0), (-1, 1)),
    "words": (3, "ab", ("ab",), None),
    "bool": (1, 0.0, "no", None),
    "flag": (1, 0.0, "no"),
    "function": ("frobnicate", 3, None),
    "window": ((-1, 0), (0, -1), (1,), (1, 2, 3), (1.5, None), (True, 0), 3, "ab"),
    "dropout": (1.0, -0.25, float("nan"), -float("inf"), True, "0.1", None),
}


def wrong_fields(variant: str) -> Iterator[tuple[str, Any]]:
    for kind, annotations in NUMBERS.items():
        for name in hints(variant, *annotations):
            yield from ((name, value) for value in WRONG.get(name, WRONG[kind]))
    for name in hints(variant, "tuple[int | None, int | None] | None"):
        yield from ((name, value) for value in WRONG["window"])


@pytest.mark.parametrize(
    ("variant", "field", "value"), [(v, field, value) for v in VARIANTS for field, value in wrong_fields(v)]
)
def test_a_wrong_value_of_a_field(variant: str, field: str, value: Any) -> None:
    fields = next(iter(contract.examples(variant).values())).as_dict() | {field: value}
    text = refused_by_all(lambda tree: tree.package.build(variant, **fields), ValueError, variant)
    assert field in text
    shown = tuple(value) if isinstance(value, list) else value
    assert repr(shown) in text


def test_every_field_has_wrong_values() -> None:
    """No field is of a kind that the test above does not know."""
    for variant in VARIANTS:
        assert {field for field, _ in wrong_fields(variant)} == set(contract.get(variant).Config.fields())


@pytest.mark.parametrize("variant", [v for v in VARIANTS if hints(v, "int")])
def test_zero_sizes(variant: str) -> None:
    """A size is at least 1. A count that may be 0 says so where -1 is refused, and every tree builds with it."""
    fields = next(iter(contract.examples(variant).values())).as_dict()
    for name in hints(variant, "int"):
        build = lambda tree, n, name=name: tree.package.build(variant, **fields | {name: n})  # noqa: E731
        text = refused_by_all(lambda tree, build=build: build(tree, -1), ValueError, variant)
        if f"{name} to be an integer from 0" in text:
            assert all(getattr(build(tree, 0).config, name) == 0 for tree in TREES.values())
        else:
            text = refused_by_all(lambda tree, build=build: build(tree, 0), ValueError, variant)
            assert name in text
            assert "at least 1, got 0" in text or f"{name} to be 1 or 2, got 0" in text


@pytest.mark.parametrize("variant", [v for v in VARIANTS if {"d_model", "num_heads", "head_dim"} <= set(
    contract.get(v).Config.fields()) and contract.get(v).Config.head_dim is None])  # fmt: skip
def test_heads_that_do_not_divide_the_width(variant: str) -> None:
    config = next(iter(contract.examples(variant).values()))
    fields = {name: getattr(config, name) for name in config.required()} | {"d_model": 7, "num_heads": 3}
    text = refused_by_all(lambda tree: tree.package.build(variant, **fields), ValueError, variant)
    assert "divisible" in text
    assert "d_model=7, num_heads=3" in text


@dataclass(frozen=True, kw_only=True)
class Wider(mha.Config):
    """Takes over the fields of multi-head attention and adds one."""

    more: int = 1


def test_a_config_that_takes_over_the_fields_of_another_is_not_its_config() -> None:
    config, more = Wider(d_model=6, num_heads=2), {"jax": {"rngs": nnx.Rngs(0)}}
    text = refused_by_all(
        lambda tree: tree.package.MultiHeadAttention(config, **more.get(tree.name, {})), TypeError, "mha"
    )
    assert (
        "expected config to be a MultiHeadAttention.Config, got parity_tests.tests.contract.test_bad_input.Wider"
        in text
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_unknown_variant(variant: str) -> None:
    wrong = f"{variant}x"
    for tree in TREES.values():
        with pytest.raises(ValueError, match="expected the name of a variant") as caught:
            tree.package.build(wrong)
        assert f"got {wrong!r}; did you mean {variant!r}" in str(caught.value)


def test_an_unknown_variant_like_no_other() -> None:
    for tree in TREES.values():
        for wrong in ("qqqqqqq", "____", "", 3, None):
            with pytest.raises(ValueError, match="expected the name of a variant") as caught:
                tree.package.build(wrong)
            assert str(caught.value).endswith(f"got {wrong!r}; choose one of {', '.join(KNOWN)}")


@pytest.mark.parametrize(("variant", "field"), [(v, f) for v in VARIANTS for f in contract.get(v).Config.fields()])
def test_an_unknown_field(variant: str, field: str) -> None:
    fields = next(iter(contract.examples(variant).values())).as_dict()
    wrong = {f"{field}x": fields.pop(field)}
    text = refused_by_all(lambda tree: tree.package.build(variant, **fields, **wrong), TypeError, variant)
    assert f"got '{field}x'; did you mean '{field}'" in text


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("hidden_size", "did you mean 'd_model'?"),
        ("num_key_value_heads", "did you mean 'num_kv_heads'?"),
        ("rope_theta", "did you mean 'rope_base'?"),
        ("projection", "did you mean 'projections' or "),
        ("seeds", "did you mean 'seed'?"),
        (
            "qqqq",
            "choose one of d_model, num_heads, num_kv_heads, head_dim, value_head_dim, output_dim, scale, causal and",
        ),
    ],
)
def test_a_field_of_another_library_and_one_like_no_other(name: str, fix: str) -> None:
    fields = {"d_model": 6, "num_heads": 2}
    text = refused_by_all(lambda tree: tree.package.build("decoder", **fields, **{name: 1}), TypeError, "decoder")
    assert f"expected one of its fields, got {name!r}; {fix}" in text and len(text) < 250


@pytest.mark.parametrize(("variant", "field"), [(v, f) for v in VARIANTS for f in contract.get(v).Config.required()])
def test_a_missing_field(variant: str, field: str) -> None:
    fields = next(iter(contract.examples(variant).values())).as_dict()
    del fields[field]
    text = refused_by_all(lambda tree: tree.package.build(variant, **fields), TypeError, variant)
    assert text == f"{variant}: expected a value for {field}, got none; pass {field}="


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", [-1, 1.5, True, "0"])
def test_a_wrong_seed(variant: str, seed: Any) -> None:
    fields = next(iter(contract.examples(variant).values())).as_dict()
    text = refused_by_all(lambda tree: tree.package.build(variant, seed=seed, **fields), ValueError, variant)
    assert text == f"{variant}: expected seed to be an integer from 0, got {seed!r}; set seed="


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", ["int32", "float8", "bool", np.int32, complex, None, 64])
def test_a_wrong_dtype(variant: str, dtype: Any) -> None:
    fields = next(iter(contract.examples(variant).values())).as_dict()
    text = refused_by_all(lambda tree: tree.package.build(variant, dtype=dtype, **fields), ValueError, variant)
    assert f"dtype to be one of float64, float32, bfloat16, float16, got {dtype!r}" in text


@pytest.mark.parametrize("variant", VARIANTS)
def test_dtypes_by_name_or_by_object(variant: str) -> None:
    fields = next(iter(contract.examples(variant).values())).as_dict()
    objects = {
        "numpy": (np.float32, np.dtype("float32")),
        "torch": (torch.float32,),
        "jax": (jnp.float32, np.dtype("float32")),
    }
    for tree in TREES.values():
        for dtype in objects[tree.name]:
            layer = tree.package.build(variant, dtype=dtype, **fields)
            assert all(tree.numpy(x).dtype == np.float32 for x in layer.params().values())


# Calls ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bad:
    """A call that must be refused: what is wrong, which argument is replaced by what, the class of the error."""

    what: str
    argument: str
    value: Any
    error: type[Exception]
    words: str = ""


def longer(x: np.ndarray, axis: int) -> np.ndarray:
    """One entry more along an axis."""
    return np.concatenate([x, np.take(x, [0], axis=axis)], axis=axis)


def bad_calls(config: Config, inputs: Arrays) -> Iterator[Bad]:
    known = dict(config.sizes())
    arrays = [name for name, arg in config.arguments().items() if arg.kind == "array"]
    for name, arg in config.arguments().items():
        x = inputs[name] if name in inputs else np.zeros([known[letter] for letter in arg.axes.split()], np.int64)
        yield from bad_arrays(name, arg, x, known, arrays)
        if arg.kind in ("mask", "keep", "marks"):
            hint = f"pass {name} == 1"
            for dtype in ("float32", "float64", "int64", "int32", "uint8"):
                yield Bad(f"{dtype} {name}", name, x.astype(dtype), TypeError, hint)
            yield from bad_broadcasts(name, x)
        if arg.kind == "bias":
            yield Bad(f"integer {name}", name, x.astype("int32"), TypeError, "float dtype")
            yield Bad(f"boolean {name}", name, x > 0, TypeError, "float dtype")
            yield Bad(f"float32 {name}", name, x.astype("float32"), TypeError, "of dtype float64")
            yield from bad_broadcasts(name, x)
        known |= dict(zip(arg.axes.split(), x.shape, strict=True))


def bad_arrays(name: str, arg: Arg, x: np.ndarray, known: dict[str, int], arrays: list[str]) -> Iterator[Bad]:
    yield Bad(f"{name} as a list", name, x.tolist(), TypeError, "got list; convert it")
    yield Bad(f"{name} as a number", name, 1.0, TypeError, "got float; convert it")
    if arg.kind not in ("array", "integers"):
        return
    yield Bad(f"{name} of too low a rank", name, np.asarray(x[0]), ValueError, f"{x.shape[1:]}")
    yield Bad(f"{name} of too high a rank", name, x[None], ValueError, f"(1, {x.shape[0]}")
    for i, letter in enumerate(arg.axes.split()):
        if letter in known:
            yield Bad(f"{name} with a longer {letter}", name, longer(x, i), ValueError, f"{letter}={known[letter]}")
    if arg.kind == "integers":
        yield Bad(f"float {name}", name, x.astype("float64"), TypeError, "integer dtype")
        yield Bad(f"boolean {name}", name, x > 0, TypeError, "integer dtype")
        return
    for dtype in ("int64", "int32", "bool", "complex128"):
        yield Bad(f"{dtype} {name}", name, x.astype(dtype), TypeError, f"float dtype, got {dtype}")
    if len(arrays) > 1:
        for dtype in ("float32", "float16"):
            yield Bad(f"{name} in {dtype} beside float64", name, x.astype(dtype), TypeError)
    if not arg.optional and arg.falls_back_to is None:
        yield Bad(f"no {name}", name, None, TypeError, f"pass {name}=")


def bad_broadcasts(name: str, x: np.ndarray) -> Iterator[Bad]:
    words = f"expected {name} broadcastable to"
    for axis, size in enumerate(x.shape):
        if size > 0:
            yield Bad(f"{name} longer on axis {axis}", name, longer(x, axis), ValueError, words)
        if size > 2:
            short = np.take(x, range(size - 1), axis=axis)
            yield Bad(f"{name} too short on axis {axis}", name, short, ValueError, words)
    yield Bad(f"{name} of too high a rank", name, x[None], ValueError, "; remove axes")


@pytest.mark.parametrize(("variant", "example"), EXAMPLES)
def test_a_bad_call(variant: str, example: str) -> None:
    config, inputs = config_of(variant, example), inputs_for(variant, example, "full")
    layers = {tree.name: tree.layer(variant, example) for tree in TREES.values()}
    checked = 0
    for bad in bad_calls(config, inputs):

        def call(tree: Tree, bad: Bad = bad) -> Any:
            wrong = tree.array(bad.value) if isinstance(bad.value, np.ndarray) else bad.value
            return layers[tree.name](**tree.arrays(inputs) | {bad.argument: wrong})

        try:
            text = refused_by_all(call, bad.error, variant)
        except (pytest.fail.Exception, AssertionError, Exception) as error:
            raise AssertionError(f"{bad.what}: {error}") from error
        assert bad.words in text, f"{bad.what}: {text}"
        assert bad.argument in text or re.search("other (inputs|arrays)", text), f"{bad.what}: {text}"
        checked += 1
    assert checked > 5


@pytest.mark.parametrize("variant", VARIANTS)
def test_arrays_of_another_framework(variant: str) -> None:
    example = next(iter(contract.examples(variant)))
    inputs = inputs_for(variant, example)
    for tree in TREES.values():
        layer = tree.layer(variant, example)
        for other in TREES.values():
            if other is tree or (tree.name, other.name) == (
                "jax",
                "numpy",
            ):  # JAX takes NumPy's arrays everywhere
                continue
            for name, x in inputs.items():
                wrong = other.array(x)
                given = tree.arrays(inputs) | {name: wrong}
                text = refused(lambda layer=layer, given=given: layer(**given), TypeError, variant)
                want = f"{variant}: expected {name} as a {tree.array_type}, got {type(wrong).__name__}; convert it"
                assert text == want


@pytest.mark.parametrize("variant", WHOLE)
def test_numpy_arrays_go_into_jax(variant: str) -> None:
    example = next(iter(contract.examples(variant)))
    inputs, tree = inputs_for(variant, example), TREES["jax"]
    layer = tree.layer(variant, example)
    for a, b in zip(Tree.__call__(tree, layer, inputs), flat(layer(**inputs)), strict=True):
        assert np.array_equal(a, b)


def taking(*options: str) -> list[str]:
    """The variants whose layers take some options."""
    layers = {v: getattr(TREES["numpy"].package, contract.get(v).Config.class_name) for v in VARIANTS}
    return [v for v, layer in layers.items() if {*options} <= inspect.signature(layer.__call__).parameters.keys()]


def refused_at_any_length(monkeypatch: pytest.MonkeyPatch, variant: str, **options: Any) -> str:
    """The text with which every tree refuses a short call, and the same call in blocks of rows."""
    example = next(iter(contract.examples(variant)))
    inputs, texts = inputs_for(variant, example), []
    for scores in (row_blocks.ONE_BLOCK_SCORES, 0):
        for tree in TREES.values():
            monkeypatch.setattr(f"{tree.package.__name__}.attention.row_blocks.ONE_BLOCK_SCORES", scores)
        texts.append(
            refused_by_all(
                lambda tree: tree.layer(variant, example)(**tree.arrays(inputs), **options), ValueError, "attend"
            )
        )
    assert texts[0] == texts[1]
    return texts[0]


@pytest.mark.parametrize("variant", taking("implementation"))
def test_an_unknown_path(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that a variant does not have is refused."""
    text = refused_at_any_length(monkeypatch, variant, implementation="frobnicate")
    assert "implementation to be one of" in text
    assert "got 'frobnicate'" in text


@pytest.mark.parametrize("variant", taking("implementation", "return_weights"))
def test_the_fast_path_returns_no_weights(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = refused_at_any_length(monkeypatch, variant, implementation="fused", return_weights=True)
    assert "implementation='fused' without arguments that need the weights, got return_weights" in text


@pytest.mark.parametrize("variant", ["entmax_attention", "hard", "sigmoid_attention"])
def test_weights_of_another_kind_have_no_fast_path(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = refused_at_any_length(monkeypatch, variant, implementation="fused")
    assert "implementation='fused' without arguments that need the weights, got softmax_fn" in text


# float64 in JAX -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_float64_in_jax_without_x64(variant: str) -> None:
    config = next(iter(contract.examples(variant).values()))
    with jax.enable_x64(False):
        build = refused(lambda: JAX.build(variant, dtype="float64", **config.as_dict()), ValueError, variant)
        kinds: list[dict[str, Any]] = [{"param_dtype": "float64"}, {"dtype": jnp.float64}]
        layer = getattr(JAX, config.class_name)
        for kind in kinds:
            text = refused(lambda kind=kind: layer(config, rngs=nnx.Rngs(0), **kind), ValueError, variant)
            assert text == build
        for dtype in ("float32", "bfloat16"):
            JAX.build(variant, dtype=dtype, **config.as_dict())
    assert "jax_enable_x64" in build
    JAX.build(variant, dtype="float64", **config.as_dict())


@pytest.mark.parametrize("variant", VARIANTS)
def test_float64_arrays_in_jax_without_x64(variant: str) -> None:
    """NumPy's float64 is not computed in float32 in silence."""
    example = next(iter(contract.examples(variant)))
    inputs = inputs_for(variant, example)
    with jax.enable_x64(False):
        layer = JAX.build(variant, dtype="float32", **config_of(variant, example).as_dict())
        with pytest.raises((ValueError, TypeError)):
            layer(**inputs)


# attend ---------------------------------------------------------------------------------------------------------------

SIZES = {"b": 2, "t": 3, "s": 3, "i": 6, "j": 6}


def attend_inputs() -> Arrays:
    rng = np.random.default_rng(5)
    shapes = {"q": (2, 5, 6, 7), "k": (2, 3, 2, 7), "v": (2, 3, 2, 11)}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return arrays | {
        "mask": rng.random((2, 6, 5, 3)) < 0.5,
        "bias": rng.normal(size=(2, 6, 5, 3)),
        "keep": rng.random((2, 6, 5, 3)) < 0.5,
    }


def bad_attends() -> Iterator[Bad]:
    inputs = attend_inputs()
    q, k, mask = inputs["q"], inputs["k"], inputs["mask"]
    yield Bad("q without heads", "q", q[:, :, 0], ValueError)
    yield Bad("q of rank 5", "q", q[None], ValueError)
    yield Bad("k of another batch", "k", k[:1], ValueError)
    yield Bad("k of another width", "k", k[..., :-1], ValueError)
    yield Bad("k of another length", "k", k[:, :-1], ValueError)
    yield Bad("integer k", "k", k.astype("int64"), TypeError)
    yield Bad("mixed dtypes", "k", k.astype("float32"), TypeError)
    yield Bad("k as a list", "k", k.tolist(), TypeError)
    yield Bad("an additive float mask", "mask", np.where(mask, 0.0, -np.inf), TypeError)
    yield Bad("an integer mask", "mask", mask.astype("int64"), TypeError)
    yield Bad("an integer keep", "keep", mask.astype("int64"), TypeError)
    yield Bad("a boolean bias", "bias", mask, TypeError)
    for name in ("mask", "bias", "keep"):
        yield from bad_broadcasts(name, inputs[name])


@pytest.mark.parametrize("bad", list(bad_attends()), ids=lambda bad: bad.what)
def test_attend_refuses(bad: Bad) -> None:
    inputs = attend_inputs()

    def call(tree: Tree) -> Any:
        wrong = tree.array(bad.value) if isinstance(bad.value, np.ndarray) else bad.value
        return tree.package.attend(**tree.arrays(inputs) | {bad.argument: wrong})

    text = refused_by_all(call, bad.error, "attend")
    assert re.search(rf"expected (a boolean )?{bad.argument} ", text) or re.search("other (inputs|arrays)", text)
    assert bad.words in text


def test_attend_refuses_heads_that_cannot_share() -> None:
    inputs = {name: x for name, x in attend_inputs().items() if name in "qkv"}
    inputs["q"] = inputs["q"][:, :, :5]
    text = refused_by_all(lambda tree: tree.package.attend(**tree.arrays(inputs)), ValueError, "attend")
    assert "the heads of q to be a multiple of those of k, which has at least 1, got 5 and 2" in text


MISSING: dict[str, tuple[str, Callable[[Any, Any], Any], str]] = {
    "attend": ("attend", lambda attn, x: attn.attend(None, x, x), "q (b, t, h, k), got None; pass q="),
    "attend, offset": (
        "attend",
        lambda attn, x: attn.attend(x, None, x, offset=1),
        "an array for k, got None; pass k=",
    ),
    "attend_paged": (
        "attend_paged",
        lambda attn, x: attn.attend_paged(x, None, x, x, x),
        "an array for k_pages, got None; pass k_pages=",
    ),
    "write_pages": (
        "write_pages",
        lambda attn, x: attn.write_pages(x, None, x, x),
        "an array for new, got None; pass new=",
    ),
    "recur": ("recur", lambda attn, x: attn.recur(x, None, x), "an array for k, got None; pass k="),
    "torch": (
        "scaled_dot_product_attention",
        lambda attn, x: attn.drop_in.scaled_dot_product_attention(None, x, x),
        "an array for query, got None; pass query=",
    ),
    "jax": (
        "dot_product_attention",
        lambda attn, x: attn.drop_in.dot_product_attention(x, x, None),
        "an array for value, got None; pass value=",
    ),
    "rotate": ("rotate", lambda attn, x: attn.rotate(None, x, x), "an array for x, got None; pass x="),
    "rotate, cos": (
        "rotate",
        lambda attn, x: attn.rotate(x, None),
        "an array for cos, got None; pass positions, or both results of rotary_angles",
    ),
    "rotary_angles": (
        "rotary_angles",
        lambda attn, x: attn.rotary_angles(None, 6),
        "an array for positions, got None; pass positions=",
    ),
    "relative_buckets": (
        "relative_buckets",
        lambda attn, x: attn.relative_buckets(None),
        "an array for relative_positions, got None; pass relative_positions=",
    ),
    "softmax": ("softmax", lambda attn, x: attn.softmax(None), "an array for scores, got None; pass scores="),
    "entmax": ("entmax", lambda attn, x: attn.entmax(None), "an array for scores, got None; pass scores="),
    "merge, context": (
        "merge",
        lambda attn, x: attn.merge([(None, x)]),
        "an array for context, got None; take both from return_lse=True",
    ),
    "merge, lse": (
        "merge",
        lambda attn, x: attn.merge([(x, None)]),
        "an array for lse, got None; take both from return_lse=True",
    ),
    "Slopes": (
        "Slopes",
        lambda attn, x: attn.attend(x, x, x, terms=attn.terms.Slopes(None)),
        "an array for slopes, got None; pass slopes=",
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_none_in_place_of_an_array(case: str) -> None:
    who, call, words = MISSING[case]
    x = np.ones((2, 3, 4, 6))
    text = refused_by_all(lambda tree: call(tree.package, tree.array(x)), TypeError, who)
    assert text == f"{who}: expected {words}"


@pytest.mark.parametrize("words", [{"implementation": "fast"}, {"normalize_over": "values"}])
def test_attend_refuses_unknown_words(words: dict[str, str]) -> None:
    inputs = attend_inputs()
    text = refused_by_all(lambda tree: tree.package.attend(**tree.arrays(inputs), **words), ValueError, "attend")
    ((name, word),) = words.items()
    assert f"{name} to be one of" in text
    assert repr(word) in text


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"scale": 1.0}, {"scale": True}),
        ({"causal": True}, {"causal": 1}),
        ({"window": (1, 0)}, {"window": (True, 0)}),
        ({"window": [1, 0]}, {"window": [True, 0]}),
        ({"softcap": 1.0}, {"softcap": True}),
        ({"rate": 0.0}, {"rate": False}),
    ],
)
def test_attend_refuses_after_a_call_that_is_equal(right: dict[str, Any], wrong: dict[str, Any]) -> None:
    """1 and True are one key of a cache and two things to say."""
    inputs = {name: x for name, x in attend_inputs().items() if name in "qkv"}
    for tree in TREES.values():
        tree.package.attend(**tree.arrays(inputs), **right)
    for _ in range(2):
        refused_by_all(lambda tree: tree.package.attend(**tree.arrays(inputs), **wrong), ValueError, "attend")


@pytest.mark.parametrize("more", [{}, {"mask": np.ones((4, 5), np.bool_)}], ids=["bare", "mask"])
def test_what_passed_in_one_tree_is_checked_in_another(more: dict[str, Any]) -> None:
    """Arrays of NumPy in PyTorch, and of PyTorch and JAX in NumPy, after their own tree took them."""
    given = {name: np.ones((1, n, 2, 3), np.float32) for name, n in (("q", 4), ("k", 5), ("v", 5))} | more
    for owner, other in (("numpy", "torch"), ("torch", "numpy"), ("jax", "numpy"), ("jax", "torch")):
        arrays = TREES[owner].arrays(given)
        TREES[owner].package.attend(**arrays)
        with pytest.raises(TypeError, match="attend: expected q as"):
            TREES[other].package.attend(**arrays)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_check_is_cached_and_a_refusal_is_not(tree: Tree) -> None:
    """The sizes belong to the caller, who may change them."""
    layer = tree.package.build("mha", d_model=6, num_heads=2)
    x = np.zeros((2, 3, 6), np.float32)
    assert layer.check(query=tree.array(x)) == layer.check(query=tree.array(x)) == layer.config.sizes() | SIZES
    hits = _base._memoized.cache_info().hits
    layer.check(query=tree.array(x)).clear()
    assert layer.check(query=tree.array(x)) == layer.config.sizes() | SIZES
    assert _base._memoized.cache_info().hits == hits + 2
    for _ in range(2):
        refused(lambda: layer.check(query=tree.array(x), mask=tree.array(x)), TypeError, "mha")
        refused(lambda: layer.check(query=tree.array(x[0])), ValueError, "mha")
        refused(lambda: layer.check(query=x.tolist()), TypeError, "mha")


@pytest.mark.parametrize("name", ["mask", "bias"])
def test_what_broadcasts_is_taken_and_nothing_else(name: str) -> None:
    """Of any number of axes, and beside sizes of 1: as NumPy broadcasts to the shape of the scores."""
    rng, dtype = np.random.default_rng(0), "bool" if name == "mask" else "float64"
    for _ in range(400):
        b, h, t, s = full = tuple(map(int, rng.choice([1, 2, 3], 4)))
        shape = tuple(map(int, rng.choice([1, 1, 2, 3], rng.integers(6))))
        shapes = {"q": (b, t, h, 5), "k": (b, s, h, 5), "v": (b, s, h, 5)}
        specs = {array: (axes, "float64") for array, axes in shapes.items()}
        try:
            broadcasts = np.broadcast_shapes(shape, full) == full
        except ValueError:
            broadcasts = False
        try:
            taken = bool(_attend.WITH_HEADS.check(None, **specs, **{name: (shape, dtype)}))
        except ValueError:
            taken = False
        assert taken == broadcasts, (shape, full)


def test_a_size_without_a_hash_is_checked() -> None:
    """The sizes of compiled programs may be symbols; here a stand-in that behaves like one."""

    class Symbol(int):
        __hash__ = None  # type: ignore[assignment]

    config = mha.Config(d_model=6, num_heads=2)
    for _ in range(2):
        assert contract.memoized_check(config, "float32", {"query": ((Symbol(2), 3, 6), "float32")})["b"] == 2
        with pytest.raises(ValueError, match="mha: expected query of shape"):
            contract.memoized_check(config, "float32", {"query": ((Symbol(2), 3, 7), "float32")})


def test_attend_takes_what_is_right() -> None:
    inputs = attend_inputs()
    found = [
        [tree.numpy(x).shape for x in tree.package.attend(**tree.arrays(inputs), return_weights=True)]
        for tree in TREES.values()
    ]
    assert found == [[(2, 5, 6, 11), (2, 6, 5, 3)]] * 3
