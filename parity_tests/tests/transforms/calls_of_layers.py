"""Calls of layers with fields and positions that their first examples lack, in one pass and in steps of decoding.

The fields are those that change how a layer computes; every example of every variant, in which each field has another
value than by default, is compiled besides with `--everything` (`test_every_other_example_is_one_graph`, in JAX
`test_every_other_example`).
"""

from collections.abc import Callable
from typing import Any

from parity_tests.tests.transforms.calls import CALLS, LAYERS, Bench, call, on_two_axes, places

HEADS: dict[str, Any] = {"d_model": 16, "num_heads": 2, "head_dim": 4}
CAUSAL_HEADS: dict[str, Any] = HEADS | {"causal": True}
LATENT: dict[str, Any] = {
    "d_model": 16,
    "num_heads": 2,
    "kv_rank": 5,
    "nope_dim": 3,
    "rope_dim": 4,
    "value_head_dim": 3,
    "causal": True,
}
LONGROPE: dict[str, Any] = {
    "rope_scaling": "longrope",
    "original_max_positions": 4,
    "short_factor": (1.0, 1.5),
    "long_factor": (2.0, 3.0),
}
TEMPERATURE: dict[str, Any] = {"temperature_growth": 0.5, "temperature_interval": 2}


def steps(name: str) -> bool:
    return name.endswith("in steps")


def words(x: Any) -> Any:
    """An array `b t h k` as the input of a layer."""
    return x.reshape((*x.shape[:2], 16))


def in_steps(one: Any, x: Any, positions: Any = None, argument: str = "positions") -> Any:
    """The first three positions and then the last one, into a cache with room for more."""
    axes = " ".join(one.config.cache_axes().values()).split()
    sizes = {letter: x.shape[2] for letter in axes if letter not in ("b", "s", *one.config.sizes())}
    cache, outputs = one.init_cache(x.shape[0], 8, **sizes), []
    for part in (slice(0, 3), slice(3, 4)):
        if isinstance(positions, tuple):
            given = {argument: tuple(a[..., part, :] for a in positions)}
        else:
            given = {} if positions is None else {argument: positions[..., part]}
        y, cache = one.step(x[:, part], cache, **given)
        outputs.append(y)
    return outputs


def layer(
    name: str,
    positions: Callable[[Bench, Any, int], Any] | None = None,
    *,
    decodes: bool = True,
    same: str | None = None,
    argument: str = "positions",
    **fields: Any,
) -> None:
    """Adds the call of a layer, and one of its steps.

    Args:
        name: what the table shows, which begins with the variant.
        positions: of a bench, an integer of each sequence and how many, the argument `positions`, or another.
        decodes: whether it has steps.
        same: the name of a call that returns the same.
        argument: the name of the argument that `positions` makes.
        fields: as `build` takes them.
    """
    LAYERS[name] = name.partition(",")[0], fields

    @call(name, same)
    def _(o: Bench, x: Any, n: Any) -> Any:
        given = {} if positions is None else {argument: positions(o, n, x.shape[1])}
        return o.layers[name](words(x), **given)

    if decodes:

        @call(f"{name}, in steps", same or name)
        def _(o: Bench, x: Any, n: Any) -> Any:
            given = None if positions is None else positions(o, n, x.shape[1])
            return in_steps(o.layers[name], words(x), given, argument)


def angles(o: Bench, n: Any, t: int) -> Any:
    """Cosines and sines of positions on one axis."""
    return o.package.rotary_angles(places(o, n, t), 4, max_positions=16, dtype="float64")


def angles_on_two_axes(o: Bench, n: Any, t: int) -> Any:
    """Cosines and sines of positions on two axes."""
    options: dict[str, Any] = {"sections": (1, 1), "max_positions": 16, "dtype": "float64"}
    return o.package.rotary_angles(on_two_axes(o, n, t), 4, **options)


def numbers(o: Bench, n: Any, t: int) -> Any:
    """The numbers of documents: the second begins at the third position, another for each sequence."""
    return places(o, n, t) // 2


def squares(x: Any) -> Any:
    """Features of a user's own, none below 0."""
    return x * x + 1


layer("mha, memory_keys= and output_dim=", memory_keys=3, output_dim=5, **CAUSAL_HEADS)
layer("gqa, memory_keys= and num_kv_heads=", memory_keys=3, num_kv_heads=1, **CAUSAL_HEADS)
layer("mha, normalize_over=queries", decodes=False, normalize_over="queries", **HEADS)
layer("qk_norm, num_kv_heads= and norm=l2", num_kv_heads=1, norm="l2", **CAUSAL_HEADS)
layer("rotary, rope_sections=", on_two_axes, rope_sections=(1, 1), max_positions=16, **CAUSAL_HEADS)
layer("rotary, positions=(cos, sin)", angles_on_two_axes, same="rotary, rope_sections=", **CAUSAL_HEADS)
layer("rotary, rope_scaling=longrope", places, max_positions=16, **LONGROPE, **CAUSAL_HEADS)
layer(
    "decoder, rope_sections_interleaved=",
    on_two_axes,
    rope_sections=(1, 1),
    rope_sections_interleaved=True,
    max_positions=16,
    **CAUSAL_HEADS,
)
layer(
    "decoder, positions=(cos, sin), norm_bias=, context_norm= and clip_qkv=",
    angles,
    num_kv_heads=1,
    norm="layer",
    norm_position="after_rotation",
    norm_bias=True,
    context_norm="rms",
    context_norm_over="all",
    clip_qkv=0.5,
    **CAUSAL_HEADS,
)
layer("decoder, temperature_growth= and chunk_size=", rope_base=None, chunk_size=3, **TEMPERATURE, **CAUSAL_HEADS)
layer("forgetting, num_kv_heads=", num_kv_heads=1, **CAUSAL_HEADS)
layer("mla, positions=(cos, sin) and use_bias=", angles, use_bias=True, **LATENT)
layer("mla, rope_sections= and absorbed=", on_two_axes, rope_sections=(1, 1), absorbed=True, max_positions=16, **LATENT)
layer("linear, feature_map= of one's own", feature_map=squares, num_features=4, **CAUSAL_HEADS)
layer("linear, feature_map=exp", feature_map="exp", num_features=6, **CAUSAL_HEADS)
layer("retention, decay= without norm and gate", decay=(0.9, 0.25), norm="none", use_gate=False, **HEADS)
layer("lightning", **HEADS)
layer("gated_delta, documents=", numbers, argument="documents", chunk_size=2, conv_size=2, **HEADS)
layer("retention, documents=", numbers, argument="documents", decay=(0.9, 0.25), **HEADS)
layer("additive, causal=", query_dim=16, hidden_dim=5, causal=True)
layer("additive, normalize_over=queries", decodes=False, query_dim=16, hidden_dim=5, normalize_over="queries")
layer("luong, causal=", query_dim=16, causal=True)
LAYERS["gru"] = (
    "gru",
    {
        "input_dim": 16,
        "hidden_dim": 5,
        "num_layers": 2,
        "bidirectional": True,
        "reset_after": False,
    },
)


@call("gru, bidirectional= and reset_after=")
def _(o: Bench, x: Any, n: Any) -> Any:
    y, last = o.layers["gru"](words(x))
    return y, last.swapaxes(0, 1)


LAYERS["joint, rope_axes="] = "joint", HEADS | {"rope_base": 50.0, "rope_axes": (2, 2), "max_positions": 16}


@call("joint, rope_axes=")
def _(o: Bench, x: Any, n: Any) -> Any:
    """The second stream is the first without its first position."""
    given = on_two_axes(o, n, x.shape[1])
    named = {"positions": given, "added_positions": given[..., 1:]}
    return o.layers["joint, rope_axes="](words(x), words(x)[:, 1:], **named)


STEPS = [name for name in CALLS if steps(name)]
