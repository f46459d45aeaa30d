"""Positions as functions in the three trees: angles, the rotation by them, ALiBi's slopes and T5's buckets."""

from importlib import import_module
from math import floor, log
from typing import Any

import jax
import numpy as np
import pytest
import torch

import attn_jax
import attn_np
from attn_np.contract import alibi, decoder
from attn_np.contract.rotary import Config
from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.peers import InFloat64
from parity_tests.tests.inputs import TREES, Tree, same
from parity_tests.tests.witness import bounded, layer_of, ratio

PLACES = np.array([[0, 1, 5, 8, 2], [7, 3, 3, 11, 0]])
SCALINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "linear": {"rope_scaling": "linear", "rope_scaling_factor": 4.0},
    "dynamic": {"rope_scaling": "dynamic", "rope_scaling_factor": 2.0, "original_max_positions": 6},
    "yarn": {"rope_scaling": "yarn", "rope_scaling_factor": 4.0, "original_max_positions": 29, "beta_fast": 2.5},
    "llama3": {
        "rope_scaling": "llama3", "rope_scaling_factor": 3.0, "original_max_positions": 23, "low_freq_factor": 0.5,
        "high_freq_factor": 2.0,
    },
    "longrope": {
        "rope_scaling": "longrope", "original_max_positions": 6, "short_factor": (1.0, 1.5, 2.0, 2.5),
        "long_factor": (1.25, 3.0, 4.5, 6.0),
    },
}  # fmt: skip


def angles(tree: Tree, positions: np.ndarray, width: int = 8, **options: Any) -> list[np.ndarray]:
    return [tree.numpy(x) for x in tree.package.rotary_angles(tree.array(positions), width, **options)]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", SCALINGS)
def test_angles_are_made_in_float64_and_rounded_once(tree: Tree, kind: str, dtype: str) -> None:
    config = Config(d_model=8, num_heads=1, rope_base=50.0, **SCALINGS[kind])
    turns = PLACES[..., None] * np.array(config.frequencies(12))
    found = angles(tree, PLACES, rope_base=50.0, dtype=dtype, **SCALINGS[kind])
    for x, function in zip(found, (np.cos, np.sin), strict=True):
        assert same(x, (function(turns) * config.cos_sin_factor()).astype(dtype))
    if kind not in ("dynamic", "longrope"):
        limited = angles(tree, PLACES, rope_base=50.0, dtype=dtype, max_positions=31, **SCALINGS[kind])
        assert all(same(x, y) for x, y in zip(found, limited, strict=True))


def test_each_axis_rotates_its_own_pairs(tree: Tree) -> None:
    """Qwen2-VL's way: one set of frequencies, whose pairs are dealt out to time, row and column."""
    places = np.stack([PLACES, PLACES[::-1], PLACES + 1])
    found = angles(tree, places, sections=(1, 2, 1))
    whole = [angles(tree, x) for x in places]
    for x, of_axis in zip(found, zip(*whole, strict=True), strict=True):
        assert x.shape == (2, 5, 4)
        assert all(same(x[..., i], of_axis[axis][..., i]) for i, axis in enumerate((0, 1, 1, 2)))
    assert all(
        same(x, y) for x, y in zip(angles(tree, np.stack([PLACES] * 3), sections=(1, 2, 1)), whole[0], strict=True)
    )


def test_axes_take_pairs_in_turn(tree: Tree) -> None:
    """Qwen3-VL's way: time, row, column, time, for as long as an axis has pairs left; the rest is time's."""
    places = np.stack([PLACES, PLACES[::-1], PLACES + 1])
    whole = [angles(tree, x, 14) for x in places]
    for sections, axes in (((4, 1, 2), (0, 1, 2, 0, 0, 2, 0)), ((3, 2, 2), (0, 1, 2, 0, 1, 2, 0))):
        found = angles(tree, places, 14, sections=sections, sections_interleaved=True)
        for x, of_axis in zip(found, zip(*whole, strict=True), strict=True):
            assert all(same(x[..., i], of_axis[axis][..., i]) for i, axis in enumerate(axes))


LAYERS: dict[str, dict[str, Any]] = {
    "rotary": {"head_dim": 8},
    "decoder": {"head_dim": 8, "num_kv_heads": 1, "norm": "rms"},
    "mla": {"kv_rank": 5, "nope_dim": 3, "rope_dim": 8, "value_head_dim": 7},
}


def layer_at(tree: Tree, variant: str, **fields: Any) -> Any:
    return tree.package.build(
        variant, dtype="float64", d_model=6, num_heads=2, causal=True, **LAYERS[variant], **fields
    )


@pytest.mark.parametrize("variant", [*LAYERS, "differential"])
def test_layers_take_angles_for_positions(tree: Tree, variant: str) -> None:
    """Integers, on one axis or three, and their cosines and sines: the same bits, backward and in steps, too."""
    x, dy = (np.random.default_rng(i).normal(size=(2, 5, 6)) for i in (5, 6))
    fields: dict[str, Any] = {"max_positions": 12, "rope_base": 50.0}
    kinds: tuple[Any, ...] = ((PLACES, None), (np.stack([PLACES, PLACES[::-1], PLACES // 2]), (1, 2, 1)))
    for places, sections in kinds if variant in LAYERS else kinds[:1]:
        options = fields | ({} if sections is None else {"rope_sections": sections})
        width = 8
        if variant == "differential":
            layer = tree.package.build(
                variant, dtype="float64", d_model=6, num_heads=2, head_dim=8, causal=True, **fields
            )
        else:
            layer = layer_at(tree, variant, **options)
        layout = getattr(layer.config, "rope_layout", "half")
        assert layout in ("half", "interleaved")
        whole = tree.package.rotary_angles(
            tree.array(places), width, rope_base=50.0, sections=sections, dtype="float64"
        )
        want, found = layer(tree.array(x), positions=tree.array(places)), layer(tree.array(x), positions=whole)
        assert same(tree.numpy(found), tree.numpy(want))
        assert not same(tree.numpy(found), tree.numpy(layer(tree.array(x))))
        if tree.name == "numpy":
            pulled = [attn_np.value_and_vjp(layer, x, positions=p)[1](dy) for p in (places, whole)]
            assert all(same(a, pulled[1].inputs[n]) for n, a in pulled[0].inputs.items())
            assert all(same(a, pulled[1].params[n]) for n, a in pulled[0].params.items())
        if tree.name == "jax":  # it compiles every step, and its code is NumPy's
            continue
        caches, outputs = [layer.init_cache(2, 5) for _ in range(2)], []
        for part in (slice(0, 3), slice(3, 5)):
            given = tree.array(places[..., part]), tuple(a[:, part] for a in whole)
            for i in range(2):
                y, caches[i] = layer.step(tree.array(x[:, part]), caches[i], positions=given[i])
                outputs.append(tree.numpy(y))
        assert all(same(a, b) for a, b in zip(outputs[::2], outputs[1::2], strict=True))


def test_angles_of_one_sequence_and_narrow_layers(tree: Tree) -> None:
    """`t r` serves every sequence; a layer of 16 bits takes the float32 that it computes in."""
    layer, x = layer_at(tree, "rotary"), tree.array(np.random.default_rng(5).normal(size=(2, 5, 6)))
    some, all_ = (tree.package.rotary_angles(tree.array(PLACES[i]), 8, dtype="float64") for i in (0, [0, 0]))
    assert same(tree.numpy(layer(x, positions=some)), tree.numpy(layer(x, positions=all_)))
    narrow = tree.package.build("rotary", dtype="bfloat16", d_model=6, num_heads=2, head_dim=8, max_positions=12)
    given = tree.array(np.random.default_rng(5).normal(size=(2, 5, 6)).astype(DTYPES["bfloat16"]))
    angles = tree.package.rotary_angles(tree.array(PLACES), 8)
    assert same(*(tree.numpy(narrow(given, positions=p)) for p in (tree.array(PLACES), angles)))


@pytest.mark.parametrize("variant", LAYERS)
def test_a_model_s_whole_pair_is_each_angle_once(tree: Tree, variant: str) -> None:
    """In two halves or as neighbours, `t r` or `b t r`: in a pass, backward and in a step."""
    x, dy = (np.random.default_rng(i).normal(size=(2, 5, 6)) for i in (5, 6))
    layer = layer_at(tree, variant)
    for places in (PLACES, PLACES[0], np.zeros_like(PLACES), PLACES[:, :0]):
        inputs = tree.array(x[:, : places.shape[-1]])
        once = angles(tree, places, dtype="float64")
        outputs = []
        for pair in (once, [np.concatenate([a, a], -1) for a in once], [a.repeat(2, -1) for a in once]):
            positions = tuple(map(tree.array, pair))
            found = [tree.numpy(layer(inputs, positions=positions))]
            if tree.name != "jax" and places is PLACES:
                found.append(tree.numpy(layer.step(inputs, layer.init_cache(2, 5), positions=positions)[0]))
            if tree.name == "numpy" and places is PLACES:
                found.append(attn_np.value_and_vjp(layer, x, positions=positions)[1](dy).inputs["query"])
            outputs.append(found)
        assert all(same(a, b) for other in outputs[1:] for a, b in zip(other, outputs[0], strict=True))


def test_a_compiled_program_takes_each_angle_once() -> None:
    layer = attn_jax.build("rotary", d_model=6, num_heads=2, head_dim=8)
    pair = tuple(np.zeros((5, 8), "float32") for _ in range(2))
    x: Any = np.zeros((2, 5, 6), "float32")
    words = r"got 8 of which a compiled program does not know the values; pass each angle once: cos\[\.\.\., :4\] of"
    with pytest.raises(ValueError, match=words):
        jax.jit(lambda cos, sin: layer(x, positions=(cos, sin)))(*pair)


HALF = np.zeros((2, 5, 4))
NO_ANGLES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "each angle three times": (
        {},
        (np.zeros((2, 5, 12)),) * 2,
        "expected cos of shape (t, r) or (b, t, r), with b=2, t=5 and r=4",
    ),
    "copies that differ": (
        {},
        (np.arange(80.0).reshape(2, 5, 8),) * 2,
        "expected cos and sin with each angle once, or twice: in two equal halves, or as equal neighbours, got 8 that"
        " are neither; make them by rotary_angles",
    ),
    "halves and neighbours": (
        {},
        (np.tile([0.0, 0.0, 1.0, 1.0], (2, 5, 2)),) * 2,
        "expected cos and sin with each angle once, or twice: in two equal halves, or as equal neighbours, got 8 that"
        " may be either; pass each angle once: cos[..., :4] of halves, cos[..., ::2] of neighbours",
    ),
    "copies of different orders": (
        {},
        (np.tile(np.arange(4.0), (2, 5, 2)), np.repeat(np.tile(np.arange(4.0), (2, 5, 1)), 2, -1)),
        "expected cos and sin with each angle once, or twice: in two equal halves, or as equal neighbours, got 8 that"
        " are neither",
    ),
    "copies of one": ({}, (HALF, np.zeros((2, 5, 8))), "expected cos and sin of one width, got (4, 8); make both by"),
    "another length": ({}, (HALF, HALF[:, :4]), "expected sin of shape (t, r) or (b, t, r), with b=2, t=5 and r=4"),
    "one array": ({}, (HALF,), "expected positions as integers, or as a pair (cos, sin), got 1 arrays"),
    "narrow": ({}, (HALF.astype("float32"),) * 2, "expected cos of dtype float64, as it is computed in, got float32"),
    "one axis": ({"rope_sections": (2, 2), "max_positions": 12}, PLACES, "expected positions of shape (a=2, b=2, t=5)"),
    "too many axes": (
        {"max_positions": 12},
        np.stack([PLACES] * 2),
        "expected positions of shape (b=2, t=5), got (2, 2, 5)",
    ),
}


@pytest.mark.parametrize("case", NO_ANGLES)
def test_positions_that_a_layer_refuses(tree: Tree, case: str) -> None:
    fields, positions, words = NO_ANGLES[case]
    given = tuple(map(tree.array, positions)) if isinstance(positions, tuple) else tree.array(positions)
    with pytest.raises((ValueError, TypeError)) as caught:
        layer_at(tree, "rotary", **fields)(tree.array(np.zeros((2, 5, 6))), positions=given)
    assert str(caught.value).startswith(f"rotary: {words}")


def test_fields_of_sections() -> None:
    for sections in ((1, 2), (4, 0), [2, 2], 4):
        with pytest.raises(
            ValueError, match="rotary: expected rope_sections to be counts of pairs that add up to 4, got"
        ):
            Config(d_model=8, num_heads=1, max_positions=9, rope_sections=sections)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rotary: expected max_positions for rope_sections, got none"):
        Config(d_model=8, num_heads=1, rope_sections=(2, 2))
    fields: dict[str, Any] = {"d_model": 14, "num_heads": 1, "max_positions": 9, "rope_sections_interleaved": True}
    for base in (50.0, None):
        with pytest.raises(ValueError, match="decoder: expected rope_sections for rope_sections_interleaved="):
            decoder.Config(**fields, rope_base=base)
    for sections in ((2, 3, 2), (2, 2, 3), (1, 6)):
        with pytest.raises(ValueError, match="decoder: expected rope_sections of at most \\(7, "):
            decoder.Config(**fields, rope_sections=sections)
    with pytest.raises(ValueError, match="decoder: expected rope_sections_interleaved to be True or False, got 1"):
        decoder.Config(**fields | {"rope_sections_interleaved": 1}, rope_sections=(3, 2, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="decoder: expected no \\(cos, sin\\) without rope_base, got them"):
        layer = attn_np.build("decoder", dtype="float64", d_model=6, num_heads=2, head_dim=8, rope_base=None)
        layer(np.zeros((2, 5, 6)), positions=(HALF, HALF))


def test_a_temperature_needs_positions_on_one_axis() -> None:
    fields: dict[str, Any] = {"d_model": 6, "num_heads": 2, "head_dim": 8, "temperature_growth": 0.5}
    fields |= {"temperature_interval": 2, "max_positions": 12}
    with pytest.raises(ValueError, match="decoder: expected no rope_sections with temperature_growth=, got both"):
        decoder.Config(**fields, rope_sections=(2, 2))
    layer = attn_np.build("decoder", dtype="float64", **fields)
    with pytest.raises(ValueError, match="decoder: expected positions as integers for temperature_growth=, got"):
        layer(np.zeros((2, 5, 6)), positions=(HALF, HALF))


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
def test_qwen2_vl_turns_as_sections_do(tree: Tree) -> None:
    """Outputs and gradients of its attention with positions in time, row and column."""
    modeling = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl")
    text = import_module("transformers.models.qwen2_vl.configuration_qwen2_vl").Qwen2VLTextConfig
    rope = {"rope_type": "default", "rope_theta": 50.0, "mrope_section": [1, 2, 1]}
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
    with InFloat64():
        config = text(**sizes, intermediate_size=8, vocab_size=11, rope_parameters=rope, attn_implementation="sdpa")
        theirs = modeling.Qwen2VLAttention(config, 0)
    places = np.stack([PLACES, PLACES[::-1], PLACES // 2])
    x, dy = (np.random.default_rng(i).normal(size=(2, 5, 16)) for i in (5, 6))
    cos, sin = attn_np.rotary_angles(places, 8, rope_base=50.0, sections=(1, 2, 1), dtype="float64")
    halves = modeling.Qwen2VLRotaryEmbedding(config)
    made = halves(torch.from_numpy(x), torch.from_numpy(places))
    # Their angles are float32: at most 11 turns of a radian, and a cosine rounded once.
    for a, b in zip(made, (cos, sin), strict=True):
        assert np.abs(a[..., :4].numpy() - b).max() <= 24 * np.finfo(np.float32).eps and a.shape[-1] == 8
    given = torch.from_numpy(x).requires_grad_()
    twice = tuple(torch.from_numpy(np.concatenate([a, a], -1)) for a in (cos, sin))
    y = theirs(given, position_embeddings=twice)[0]
    (dx,) = torch.autograd.grad(y, given, torch.from_numpy(dy))
    own = decoder.Config(
        d_model=16,
        num_heads=2,
        num_kv_heads=1,
        qkv_bias=True,
        rope_base=50.0,
        max_positions=12,
        rope_sections=(1, 2, 1),
    )
    state = {n: p.detach().numpy() for n, p in theirs.named_parameters()}
    w = {f"w_{n}": state[f"{n}_proj.weight"].T.reshape(16, -1, 8) for n in "qkv"}
    w |= {f"b_{n}": state[f"{n}_proj.bias"].reshape(-1, 8) for n in "qkv"}
    w["w_o"] = state["o_proj.weight"].T.reshape(2, 8, 16)
    want = bounded(own, {"query": x, "positions": places}, w)
    assert ratio(y.detach().numpy(), want["y"]) <= 1
    layer = layer_of(tree, own, w)
    assert ratio(tree.numpy(layer(tree.array(x), positions=tree.array(places))), want["y"]) <= 1
    if tree.name == "numpy":
        pulled = attn_np.value_and_vjp(layer, x, positions=places)[1](dy).inputs["query"]
        scale = np.abs(dx.numpy()).max()
        # Some hundred products follow each other on the way to each gradient.
        assert np.abs(pulled - dx.numpy()).max() <= 1000 * np.finfo(np.float64).eps * scale


def test_xpos_decays_with_the_distance(tree: Tree) -> None:
    """zeta_i^(position / base) for queries, its inverse for keys: a product has zeta_i^(distance / base) alone."""
    zeta = (2 * np.arange(4) / 8 + 0.4) / 1.4
    plain, query, key = (angles(tree, PLACES, dtype="float64", xpos=xpos) for xpos in (None, 16.0, -16.0))
    scale = np.exp(PLACES[..., None] * (np.log(zeta) / 16.0))
    assert all(same(x, y * scale) for x, y in zip(query, plain, strict=True))
    back = np.exp(PLACES[..., None] * (np.log(zeta) / -16.0))
    assert all(same(x, y * back) for x, y in zip(key, plain, strict=True))


@pytest.mark.parametrize("shape", [(2, 5, 3, 9), (2, 5, 8)])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_pairs_turn_as_complex_numbers(tree: Tree, layout: str, shape: tuple[int, ...]) -> None:
    """Forward and gradients, those of the angles too, within their bounds; `inverse` turns back."""
    rng = np.random.default_rng(5)
    x, dy = rng.normal(size=shape), rng.normal(size=shape)
    cos, sin = attn_np.rotary_angles(PLACES, 8, dtype="float64")
    carried: Any = [ErrArray(a, 0.0) for a in (x, cos, sin)]
    with precision(precision_of("float64")):
        y, pull = attn_np.value_and_vjp(attn_np.rotate, *carried, layout=layout)
        want: dict[str, Any] = {"y": y} | {f"d{name}": a for name, a in pull(ErrArray(dy, 0.0)).inputs.items()}
    turn = cos + 1j * sin if len(shape) == 3 else (cos + 1j * sin)[:, :, None]
    pairs = [(i, i + 4) if layout == "half" else (2 * i, 2 * i + 1) for i in range(4)]
    for given, factor, bound in ((x, turn, want["y"]), (dy, turn.conj(), want["dx"])):
        witness = given.copy()
        for i, (a, b) in enumerate(pairs):
            z = (given[..., a] + 1j * given[..., b]) * factor[..., i]
            witness[..., a], witness[..., b] = z.real, z.imag
        assert ratio(witness, bound) <= 1
    for i, (a, b) in enumerate(pairs):
        turned = (x[..., a] - 1j * x[..., b]) * (dy[..., a] + 1j * dy[..., b])
        turned = turned if len(shape) == 3 else np.sum(turned, axis=2)
        assert ratio(turned.real, want["dcos"][..., i]) <= 1 and ratio(turned.imag, want["dsin"][..., i]) <= 1
    call = tree.package.rotate
    arrays = [tree.array(a) for a in (x, cos, sin)]
    if tree.name == "numpy":
        got, back = attn_np.value_and_vjp(call, *arrays, layout=layout)
        grads = list(back(dy).inputs.values())
    elif tree.name == "torch":
        leaves = [a.requires_grad_() for a in arrays]
        got = call(*leaves, layout=layout)
        grads = [g.numpy() for g in torch.autograd.grad(got, leaves, tree.array(dy))]
        arrays = [a.detach() for a in arrays]
    else:
        got, back = jax.vjp(lambda *given: call(*given, layout=layout), *arrays)
        grads = [np.asarray(g) for g in back(tree.array(dy))]
    assert ratio(tree.numpy(got), want["y"]) <= 1
    for name, grad in zip(("dx", "dcos", "dsin"), grads, strict=True):
        assert ratio(grad, want[name]) <= 1, name
    inverse = tree.numpy(call(tree.array(dy), *arrays[1:], layout=layout, inverse=True))
    assert ratio(inverse, want["dx"]) <= 1


def test_positions_of_one_sequence_serve_all(tree: Tree) -> None:
    x = np.random.default_rng(5).normal(size=(2, 5, 3, 8))
    some = [tree.array(a) for a in attn_np.rotary_angles(PLACES[0], 8, dtype="float64")]
    all_ = [tree.array(a) for a in attn_np.rotary_angles(PLACES[[0, 0]], 8, dtype="float64")]
    found, want = (tree.numpy(tree.package.rotate(tree.array(x), *a)) for a in (some, all_))
    assert same(found, want)


@pytest.mark.parametrize("options", [{}, {"rope_base": 50.0}, {"xpos": -16.0, "max_positions": 12}], ids=str)
def test_positions_stand_for_their_angles(tree: Tree, options: dict[str, Any]) -> None:
    """Forward and the gradient of x, for positions of each sequence and of all, with and without heads."""
    rng = np.random.default_rng(5)
    for places, shape in ((PLACES, (2, 5, 3, 8)), (PLACES[0], (2, 5, 8))):
        x, dy = rng.normal(size=shape), rng.normal(size=shape)
        own = tree.package.rotary_angles(tree.array(places), 8, dtype="float64", **options)
        call, given = tree.package.rotate, tree.array(places)
        assert same(tree.numpy(call(tree.array(x), given, **options)), tree.numpy(call(tree.array(x), *own)))
        back = tree.numpy(call(tree.array(dy), *own, inverse=True))
        assert same(tree.numpy(call(tree.array(dy), given, inverse=True, **options)), back)
        if tree.name == "numpy":
            inputs = attn_np.value_and_vjp(call, x, places, layout="half", **options)[1](dy).inputs
            assert list(inputs) == ["x"] and same(inputs["x"], back)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_are_widened_first(tree: Tree, dtype: str) -> None:
    x = np.random.default_rng(5).normal(size=(2, 5, 3, 8)).astype(DTYPES[dtype])
    cos_sin = tree.package.rotary_angles(tree.array(PLACES), 8)
    found = tree.numpy(tree.package.rotate(tree.array(x), *cos_sin))
    wide = tree.numpy(tree.package.rotate(tree.array(x.astype(np.float32)), *cos_sin))
    assert same(found, wide.astype(DTYPES[dtype]))


def test_a_compiled_program_needs_to_know_the_limit() -> None:
    package, places = TREES["jax"].package, TREES["jax"].array(PLACES)
    with pytest.raises(ValueError, match="rotary_angles: expected max_positions in a compiled program, got none"):
        jax.jit(lambda p: package.rotary_angles(p, 8))(places)
    found = jax.jit(lambda p: package.rotary_angles(p, 8, max_positions=12, dtype="float64"))(places)
    known = jax.jit(lambda: package.rotary_angles(places, 8, dtype="float64"))()
    want = angles(TREES["numpy"], PLACES, dtype="float64")
    assert all(same(np.asarray(x), y) for some in (found, known) for x, y in zip(some, want, strict=True))


def test_slopes_are_those_of_the_layer(tree: Tree) -> None:
    for heads in (1, 6, 8):
        assert tree.package.alibi_slopes(heads) == alibi.Config(d_model=heads, num_heads=heads).slopes()
    assert tree.package.alibi_slopes(8) == tuple(2.0**-n for n in range(1, 9))


def published(relative_position: int, buckets: int, most: int, both: bool) -> int:
    """T5's bucket in logarithms, as the paper and its code have it."""
    first = 0
    if both:
        buckets //= 2
        first = buckets if relative_position > 0 else 0
    distance, exact = abs(relative_position) if both else max(-relative_position, 0), buckets // 2
    if distance < exact:
        return first + distance
    beyond = floor(log(distance / exact) / log(most / exact) * (buckets - exact) + 2.0**-40)
    return first + min(exact + beyond, buckets - 1)


@pytest.mark.parametrize("both", [True, False])
def test_buckets_are_the_published_ones(tree: Tree, both: bool) -> None:
    positions = np.arange(-150, 151).reshape(7, 43)
    found = tree.numpy(tree.package.relative_buckets(tree.array(positions), bidirectional=both))
    want = [[published(int(x), 32, 128, both) for x in row] for row in positions]
    assert found.tolist() == want
    some = tree.numpy(tree.package.relative_buckets(tree.array(positions), num_buckets=8, max_distance=20))
    assert some.tolist() == [[published(int(x), 8, 20, True) for x in row] for row in positions]


X = np.zeros((2, 5, 3, 8))
REFUSED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "odd width": ("rotary_angles", (PLACES, 7), {}, ValueError, "expected an even width, got 7"),
    "no integers": ("rotary_angles", (X, 8), {}, TypeError, "expected positions as integers, got float64"),
    "below 0": ("rotary_angles", (PLACES - 1, 8), {}, ValueError, "expected positions from 0 to 10, got -1 to 10"),
    "beyond the limit": (
        "rotary_angles",
        (PLACES, 8),
        {"max_positions": 5},
        ValueError,
        "expected positions from 0 to",
    ),
    "sections": ("rotary_angles", (PLACES, 8), {"sections": (1, 2)}, ValueError, "expected sections to be counts of"),
    "no axis": (
        "rotary_angles",
        (PLACES, 8),
        {"sections": (1, 2, 1)},
        ValueError,
        "expected positions with a first ax",
    ),
    "rope_scaling": (
        "rotary_angles",
        (PLACES, 8),
        {"rope_scaling": "ntk"},
        ValueError,
        "expected rope_scaling to be one of None, 'li",
    ),
    "xpos": ("rotary_angles", (PLACES, 8), {"xpos": 0}, ValueError, "expected xpos other than 0"),
    "dtype": (
        "rotary_angles",
        (PLACES, 8),
        {"dtype": "int8"},
        ValueError,
        "expected dtype to be one of float64, float",
    ),
    "another dtype": (
        "rotate",
        (X, X[0, ..., 0].astype("float32")) * 1 + (X[0, ..., 0],),
        {},
        TypeError,
        "expected cos",
    ),
    "another length": (
        "rotate",
        (X, X[0, :4, 0], X[0, :4, 0]),
        {},
        ValueError,
        "expected cos of shape (t, r) or (b, t",
    ),
    "too wide": ("rotate", (X, np.zeros((5, 5)), np.zeros((5, 5))), {}, ValueError, "expected at most 4 pairs, got 5"),
    "unlike": ("rotate", (X, np.zeros((5, 4)), np.zeros((5, 3))), {}, ValueError, "expected cos and sin of one shape"),
    "cosines alone": (
        "rotate",
        (X, X[0, :, 0]),
        {},
        TypeError,
        "expected cos and sin, or positions as integers, got float64 alone; pass positions, or",
    ),
    "options beside angles": (
        "rotate",
        (X, X[0, :, 0], X[0, :, 0]),
        {"xpos": 8.0, "rope_base": 50.0},
        ValueError,
        "expected no options of positions beside cos and sin, got rope_base, xpos; they are options of",
    ),
    "layout": ("rotate", (X, X[0, :, 0], X[0, :, 0]), {"layout": "x"}, ValueError, "expected layout to be one of half"),
    "rank": (
        "rotate",
        (X[0, 0], X[0, :, 0], X[0, :, 0]),
        {},
        ValueError,
        "expected x of shape (b, t, h, k) or (b, t, ",
    ),
    "heads": ("alibi_slopes", (0,), {}, ValueError, "expected num_heads to be an int from 1, got 0"),
    "relative positions": (
        "relative_buckets",
        (X,),
        {},
        TypeError,
        "expected relative_positions as signed integers, got float64",
    ),
    "buckets": ("relative_buckets", (PLACES,), {"num_buckets": 3}, ValueError, "expected num_buckets to be a multiple"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_right_is_refused(tree: Tree, case: str) -> None:
    name, given, options, error, words = REFUSED[case]
    arrays = [tree.array(x) if isinstance(x, np.ndarray) else x for x in given]
    with pytest.raises(error) as caught:
        getattr(tree.package, name)(*arrays, **options)
    assert str(caught.value).startswith(f"{name}: {words}")


BUGS = {
    "sections of other pairs": ("[x[i][..., end - n : end] for", "[x[-1 - i][..., end - n : end] for"),
    "xpos forgotten": (
        "cos_sin_table = cos_sin_table * xpos_scales(",
        "cos_sin_table = cos_sin_table + 0 * xpos_scales(",
    ),
    "xpos by the angle": ("/ config.xpos", "* config.xpos"),
    "a length of the limit": (
        "config, positions, known, name, like=positions)",
        "config, positions, known, name, like=positions, length=12)",
    ),
}


@pytest.mark.parametrize("package", ["attn_np", "attn_jax", "attn_torch"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, package: str) -> None:
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == package)
    places, options = (
        tree.array(np.stack([PLACES, PLACES + 2]) % 6),
        SCALINGS["longrope"] | {"sections": (1, 3), "xpos": 9.0},
    )
    whole = tree.package.rotary_angles(places, 8, **options)
    with planted(Mutant(bug, SHARED, *BUGS[bug], "", ""), package) as alias:
        found = __import__(alias).rotary_angles(places, 8, **options | {"max_positions": 12})
    assert not all(same(tree.numpy(x), tree.numpy(y)) for x, y in zip(found, whole, strict=True))
