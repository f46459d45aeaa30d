"""Signatures that people write kernels for, as data: layouts, options, and what their documents promise.

Values are Python expressions over the case: q k v bias mask slopes sinks keep beta log_decay state lengths table
k_pages v_pages cu_q cu_k, the sizes b t s h g d dv page, and scale softcap left right rate. `("q", "bhtd")` is an
input with a layout. Numbers have the kernel's type; `wide(x)` is in float32 or better, whole numbers in int32.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from parity_tests.kernels.limits import Limits, Sizes
from parity_tests.kernels.specs import Spec

Value = str | tuple[str, str]
Q_K_V = ("q", "k", "v")
SHAPES = ("scale", "grouped", "value width", "unequal lengths")


@dataclass(frozen=True, eq=False)
class Like:
    """A signature.

    Attributes:
        name, source: what it is called, and where its meaning is documented.
        framework: "numpy", "torch" or "jax".
        inputs: of each array by its parameter the name and layout of the case's, in their order.
        options: for each option the parameters that ask for it; an empty mapping where the arrays do.
        always: parameters that every call has.
        returns: outputs by name, each an expression of `out` and a layout; "y", and "last" of a recurrence.
        lse: the log-sum-exp likewise, and what to pass for it; None where it is not returned.
        limits: what the documents promise.
        kinds: of cases.
        positional: how many parameters are passed by position.
        imports: lines that the expressions need.
        call: how `f` is called with positional arguments `a` and others `kw`.
        more: parameters that depend on several options.
        rules: of a recurrence.
        packs: whether a recurrence takes packed sequences; with `packed` the parameters for them.
        same_lengths: whether there is one length for queries and keys.
        unasked: parameters that change the result, which no case passes.
    """

    name: str
    source: str
    framework: str
    inputs: Mapping[str, Value]
    options: Mapping[str, Mapping[str, Value]]
    returns: Mapping[str, tuple[str, str]]
    limits: Limits = field(default_factory=Limits)
    always: Mapping[str, Value] = field(default_factory=dict)
    lse: tuple[str, Mapping[str, str]] | None = None
    kinds: tuple[str, ...] = ("dense",)
    positional: int = 3
    imports: str = ""
    call: str = "f(*a, **kw)"
    more: Callable[[Spec, Limits], dict[str, str]] | None = None
    rules: tuple[str, ...] = ()
    packs: Mapping[str, Value] = field(default_factory=dict)
    same_lengths: bool = False
    unasked: tuple[str, ...] = ()

    @property
    def takes(self) -> tuple[str, ...]:
        """The options that the signature has."""
        return tuple(self.options)

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The case's names of inputs that always have a gradient."""
        return tuple(x[0] for x in self.inputs.values() if isinstance(x, tuple) and x[0] in Q_K_V)

    def arguments(self, spec: Spec, limits: Limits, lse: bool) -> dict[str, Value]:
        """What a call passes, by parameter, in order."""
        found: dict[str, Value] = dict(self.inputs) | dict(self.always)
        for option in self.takes:
            if option in spec.options:
                found |= self.options[option]
        if spec.of_q is not None:
            found |= self.packs
        if self.more is not None:
            found |= self.more(spec, limits)
        return found | dict(self.lse[1] if self.lse is not None and lse else {})


def inputs(layout: str, *names: str) -> dict[str, Value]:
    """Queries, keys and values under their names, in one layout."""
    return {name: (x, layout) for name, x in zip(names, Q_K_V, strict=True)}


def shapes(*, but: tuple[str, ...] = (), **passed: Mapping[str, Value]) -> dict[str, Mapping[str, Value]]:
    """The options that arrays ask for by their shapes, with what is passed besides."""
    return {name: passed.get(name, {}) for name in SHAPES if name not in but}


ATTEND = Like(
    "attend",
    "docs/functions.md",
    "numpy",
    inputs("bthd", "q", "k", "v"),
    {
        "causal": {"causal": "True"},
        "window": {"window": "(left, right)"},
        "mask": {"mask": "mask"},
        "bias": {"bias": ("bias", "bhts")},
        "softcap": {"softcap": "softcap"},
        "sinks": {"sinks": ("sinks", "h")},
        "dropout": {"keep": "keep", "rate": "rate"},
        "lengths": {"lengths": "lengths", "offset": "lengths - t"},
        "pattern": {"pattern": "pattern"},
        **shapes(scale={"scale": "scale"}),
    },
    {"y": ("out[0]", "bthd")},
    Limits(
        dtypes=("float64", "float32"),
        lse_gradient=True,
        queries=Sizes(0),
        keys=Sizes(0),
        block=64,  # about so many keys at a time the fast paths ask a pattern (`kernels/flash.py`)
        scales=(0.375, 1.0, -0.5, 0.0),
        broadcast=True,
        bias_holds=("-inf", "large"),
        apart=(("pattern", "lengths"),),
    ),
    lse=("out[2]", {"return_lse": "True"}),
    unasked=("terms", "normalize_over", "softmax_fn"),
)

RECUR = Like(
    "recur",
    "docs/functions.md",
    "numpy",
    inputs("bthd", "q", "k", "v"),
    {
        "beta": {"beta": ("beta", "btg")},
        "gate": {"decay": ("log_decay", "btg")},
        "channel gate": {"decay": ("log_decay", "btgk")},
        "state": {"state": ("state", "ngkv")},
        **shapes(but=("unequal lengths",), scale={"scale": "scale"}),
    },
    {"y": ("out[0]", "bthd"), "last": ("out[1]", "ngkv")},
    Limits(dtypes=("float64", "float32"), gate="linear", block=64),  # `chunk_size`
    kinds=("recurrent",),
    more=lambda spec, limits: {"rule": repr(spec.rule)},
    rules=("linear", "gated", "delta", "gated_delta"),
    same_lengths=True,
    unasked=("documents", "erase_key"),
)

SDPA = Like(
    "scaled_dot_product_attention",
    "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
    "torch",
    inputs("bhtd", "query", "key", "value"),
    {
        "causal": {"is_causal": "True"},
        "mask": {"attn_mask": "mask"},
        "bias": {"attn_mask": ("bias", "bhts")},
        **shapes(but=("grouped",), scale={"scale": "scale"}),
        "grouped": {"enable_gqa": "True"},
    },
    {"y": ("out", "bhtd")},
    Limits(
        dtypes=("float32", "float64", "bfloat16", "float16"),
        corner="top-left",
        block=128,  # most that its kernels for GPUs take at once; that for CPUs takes 512 keys
        broadcast=True,
        bias_holds=("-inf", "large"),
        apart=(("causal", "mask"), ("causal", "bias"), ("mask", "bias")),
    ),
    unasked=("dropout_p",),
)


def mods(spec: Spec, limits: Limits) -> dict[str, str]:
    """The score and mask functions of `flex_attention` for a case."""
    shift = f"{spec.s - spec.t}" if spec.kind == "dense" else "0"
    shift = "0" if limits.corner == "top-left" and spec.causal else shift
    x, added = "x", []
    if spec.softcap is not None:
        x = f"{spec.softcap} * torch.tanh(x / {spec.softcap})"
    if spec.bias:
        added.append("of_scores[b, h, i, j]")
    if spec.slopes:
        added.append(f"- of_heads[h] * abs(i + {shift} - j)")
    found = {}
    if x != "x" or added:
        terms = "".join(f" {term}" if term.startswith("-") else f" + {term}" for term in added)
        found["score_mod"] = f"lambda x, b, h, i, j: {x}{terms}"
    seen = [f"(j <= i + {shift})"] if spec.causal else []
    left, right = spec.window or (None, None)
    seen += [f"(j >= i + {shift} - {left})"] if left is not None else []
    seen += [f"(j <= i + {shift} + {right})"] if right is not None else []
    seen += [f"of_pairs[{'i, j' if spec.mask == 'ts' else 'b, h, i, j'}]"] if spec.mask else []
    if seen:
        mask = f"lambda b, h, i, j: {' & '.join(seen)}"
        found["block_mask"] = f"create_block_mask({mask}, b, h, t, s, device='cpu')"
    return found


FLEX = Like(
    "flex_attention",
    "https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html",
    "torch",
    inputs("bhtd", "query", "key", "value"),
    {
        **{name: {} for name in ("causal", "window", "mask", "softcap", "slopes", "bias")},
        **shapes(but=("grouped",), scale={"scale": "scale"}),
        "grouped": {"enable_gqa": "True"},
    },
    {"y": ("out", "bhtd")},
    Limits(gradients=("q", "k", "v"), block=128),  # blocks of a `BlockMask`
    imports="from torch.nn.attention.flex_attention import create_block_mask",
    more=mods,
)

JAX_NN = Like(
    "jax.nn.dot_product_attention",
    "https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html",
    "jax",
    inputs("bthd", "query", "key", "value"),
    {
        "causal": {"is_causal": "True"},
        "window": {"local_window_size": "(s + t if left is None else left, s + t if right is None else right)"},
        "mask": {"mask": "np.broadcast_to(mask, (b, h, t, s))"},
        "bias": {"bias": ("bias", "bhts")},
        "lengths": {"key_value_seq_lengths": "lengths"},
        **shapes(scale={"scale": "scale"}, but=("value width",)),
    },
    {"y": ("out", "bthd")},
    Limits(
        dtypes=("float32", "bfloat16", "float16"),
        corner="top-left",
        value_dims=None,
        empty_rows="undefined",
        block=128,  # of cuDNN's kernels; XLA's take everything at once
    ),
)

KERAS = Like(
    "keras.ops.dot_product_attention",
    "https://keras.io/api/ops/nn/",
    "torch",
    inputs("bthd", "query", "key", "value"),
    {
        "causal": {"is_causal": "True"},
        "mask": {"mask": "np.broadcast_to(mask, (b, h, t, s))"},
        "bias": {"bias": ("bias", "bhts")},
        **shapes(scale={"scale": "scale"}, but=("value width",)),
    },
    {"y": ("out", "bthd")},
    Limits(
        corner="top-left",
        empty_rows="mean",  # hidden scores are a large negative number
        value_dims=None,
        block=128,  # of those that it calls, PyTorch's and JAX's
        apart=(("causal", "mask"), ("causal", "bias"), ("mask", "bias")),
    ),
)

FLASH_OPTIONS: dict[str, Mapping[str, Value]] = {
    "causal": {"causal": "True"},
    "window": {"window_size": "(-1 if left is None else left, -1 if right is None else right)"},
    "softcap": {"softcap": "softcap"},
    "slopes": {"alibi_slopes": "wide(slopes)"},
    **shapes(scale={"softmax_scale": "scale"}, but=("value width",)),
}
FLASH_SOURCE = "https://github.com/Dao-AILab/flash-attention/blob/main/flash_attn/flash_attn_interface.py"
FLASH_LIMITS = Limits(
    # 128 queries and 64 to 128 keys at once, by the width (`run_mha_fwd_hdim*` in csrc/flash_attn).
    dtypes=("float16", "bfloat16"),
    value_dims=None,
    head_dims=Sizes(8, 256, 8),
    gradients=Q_K_V,
    block=128,
)
FLASH = Like(
    "flash_attn_func", FLASH_SOURCE, "torch", inputs("bthd", "q", "k", "v"), FLASH_OPTIONS,
    {"y": ("out[0] if isinstance(out, tuple) else out", "bthd")}, FLASH_LIMITS,
    lse=("out[1]", {"return_attn_probs": "True"}),
)  # fmt: skip
FLASH_VARLEN = Like(
    "flash_attn_varlen_func", FLASH_SOURCE, "torch", inputs("thd", "q", "k", "v"), FLASH_OPTIONS,
    {"y": ("out[0] if isinstance(out, tuple) else out", "thd")}, FLASH_LIMITS.but(lse_layout="ht"),
    lse=("out[1]", {"return_attn_probs": "True"}), kinds=("packed",),
    packs={
        "cu_seqlens_q": "cu_q", "cu_seqlens_k": "cu_k", "max_seqlen_q": "int(np.diff(cu_q).max())",
        "max_seqlen_k": "int(np.diff(cu_k).max())",
    },
)  # fmt: skip
FLASH_CACHE = Like(
    "flash_attn_with_kvcache", FLASH_SOURCE, "torch",
    {"q": ("q", "bthd"), "k_cache": "k_pages", "v_cache": "v_pages"},
    {**FLASH_OPTIONS, "lengths": {"cache_seqlens": "lengths", "block_table": "table"}},
    {"y": ("out[0] if isinstance(out, tuple) else out", "bthd")},
    FLASH_LIMITS.but(forward_only=True, page_sizes=(256,), unread=("padding", "pages")),
    lse=("out[1]", {"return_softmax_lse": "True"}), kinds=("paged",),
)  # fmt: skip


def xformers_bias(spec: Spec, limits: Limits) -> dict[str, str]:
    """The bias object of `memory_efficient_attention` for a case."""
    if spec.bias:
        return {}
    if spec.of_q is not None:
        lengths = [f"np.diff({name}).tolist()" for name in ("cu_q", "cu_k")]
        made = f"fmha.BlockDiagonalMask.from_seqlens({', '.join(lengths)})"
        return {"attn_bias": made + (".make_causal_from_bottomright()" if spec.causal else "")}
    if spec.window is not None:
        left, right = spec.window
        sizes = f"{spec.s if left is None else left}, {0 if spec.causal else spec.t if right is None else right}"
        return {"attn_bias": f"fmha.LocalAttentionFromBottomRightMask({sizes})"}
    corner = "LowerTriangularMask" if limits.corner == "top-left" else "LowerTriangularFromBottomRightMask"
    return {"attn_bias": f"fmha.{corner}()"} if spec.causal else {}


XFORMERS = Like(
    "memory_efficient_attention", "https://facebookresearch.github.io/xformers/components/ops.html", "torch",
    inputs("bthd", "query", "key", "value"),
    {
        "causal": {}, "window": {}, "bias": {"attn_bias": ("bias", "bhts")},
        **shapes(but=("grouped",), scale={"scale": "scale"}),
    },
    {"y": ("out", "bthd")},
    Limits(
        dtypes=("float16", "bfloat16"), corner="top-left", empty_rows="undefined", head_dims=Sizes(8, 256, 8),
        block=128,  # of CUTLASS' kernels: 32 or 64 queries, 64 or 128 keys
        apart=(("causal", "bias"), ("window", "bias"), ("causal", "window")),
    ),
    kinds=("dense", "packed"), imports="import xformers.ops.fmha.attn_bias as fmha", more=xformers_bias,
)  # fmt: skip

PALLAS_GPU = Like(
    "pallas mha", "https://github.com/jax-ml/jax/blob/main/jax/experimental/pallas/ops/gpu/attention.py", "jax",
    inputs("bthd", "q", "k", "v"),
    {"causal": {"causal": "True"}, **shapes(but=("grouped", "value width"), scale={"sm_scale": "scale"})},
    {"y": ("out", "bthd")},
    Limits(
        corner="top-left", default_scale=1.0, value_dims=None, groups=Sizes(1, 1), empty_rows="undefined",
        queries=Sizes(16, multiple=16), keys=Sizes(16, multiple=16), head_dims=Sizes(16),
        apart=(("unequal lengths", "gradients"),), block=128,  # `BlockSizes.get_default()`
    ),
    always={"segment_ids": "None"}, positional=4,
)  # fmt: skip
PALLAS_TPU = Like(
    "pallas tpu flash_attention",
    "https://github.com/jax-ml/jax/blob/main/jax/experimental/pallas/ops/tpu/flash_attention.py", "jax",
    inputs("bhtd", "q", "k", "v"),
    {
        "causal": {"causal": "True"}, "bias": {"ab": "bias / scale"},
        **shapes(but=("grouped", "value width"), scale={"sm_scale": "scale"}),
    },
    {"y": ("out", "bhtd")},
    Limits(
        corner="top-left", default_scale=1.0, value_dims=None, groups=Sizes(1, 1), empty_rows="mean",
        order=("bias", "scale", "cap"), scales=(0.25, 0.5), gradients=Q_K_V, head_dims=Sizes(128, 128),
        queries=Sizes(128, multiple=128), keys=Sizes(128, multiple=128), block=128,  # `BlockSizes.get_default`
    ),
)  # fmt: skip


def splash_mask(spec: Spec, limits: Limits) -> dict[str, str]:
    """The mask object of `make_splash_mha` for a case."""
    left, right = spec.window or (None, None)
    shift = 0 if limits.corner == "top-left" else spec.s - spec.t
    one = f"masks.FullMask(({spec.t}, {spec.s}))"
    if spec.window is not None:
        right = 0 if spec.causal else right
        one = f"masks.LocalMask(({spec.t}, {spec.s}), ({left}, {right}), {shift})"
    elif spec.causal:
        one = f"masks.CausalMask(({spec.t}, {spec.s}), {shift})"
    return {"mask": f"masks.MultiHeadMask([{one}] * {spec.h})"}


SPLASH = Like(
    "splash", "https://github.com/jax-ml/jax/tree/main/jax/experimental/pallas/ops/tpu/splash_attention", "jax",
    # The caller scales the queries.
    inputs("bhtd", "q", "k", "v"),
    {
        "causal": {}, "window": {}, "softcap": {"attn_logits_soft_cap": "softcap"},
        **shapes(but=("value width", "scale")),
    },
    {"y": ("out", "bhtd")},
    Limits(
        default_scale=1.0, empty_rows="undefined", queries=Sizes(128, multiple=128), keys=Sizes(128, multiple=128),
        head_dims=Sizes(128, 128), value_dims=None, block=128,  # `BlockSizes.get_default`
    ),
    imports="from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks",
    call="jax.vmap(f(**kw))(*a)", more=splash_mask,
)  # fmt: skip
PAGED = Like(
    "pallas paged_attention",
    "https://github.com/jax-ml/jax/tree/main/jax/experimental/pallas/ops/tpu/paged_attention", "jax",
    {
        "q": "q[:, 0]", "k_pages": "k_pages.transpose(2, 0, 1, 3)", "v_pages": "v_pages.transpose(2, 0, 1, 3)",
        "lengths": "lengths", "page_indices": "table",
    },
    {"lengths": {}, **shapes(but=("value width", "scale"))},
    {"y": ("out[:, None]", "bthd")},
    Limits(
        default_scale=1.0, forward_only=True, queries=Sizes(1, 1), head_dims=Sizes(128, 128), value_dims=None,
        unread=("pages",), page_sizes=(16,), block=128,  # 8 pages of 16
    ),
    kinds=("paged",), positional=5,
)  # fmt: skip


def fla(
    name: str,
    rules: tuple[str, ...],
    options: Mapping[str, Mapping[str, Value]],
    always: Mapping[str, Value] = MappingProxyType({}),
) -> Like:
    """One of flash-linear-attention's functions."""
    return Like(
        name, "https://github.com/fla-org/flash-linear-attention/tree/main/fla/ops", "torch",
        inputs("bthd", "q", "k", "v"),
        {**options, "state": {"initial_state": ("state", "ngkv")},
         **shapes(but=("unequal lengths", "grouped"), scale={"scale": "scale"})},
        {"y": ("out[0]", "bthd"), "last": ("out[1]", "ngkv")},
        Limits(empty_sequences=False, groups=Sizes(1, 1), batch=Sizes(1, 2), block=64),  # `chunk_size` in fla/ops
        always={"output_final_state": "True", **always}, kinds=("recurrent",), rules=rules, same_lengths=True,
        packs={"cu_seqlens": "cu_q.astype(np.int64)"},
    )  # fmt: skip


BETA: dict[str, Mapping[str, Value]] = {"beta": {"beta": ("beta", "btg")}}
GATE: dict[str, Mapping[str, Value]] = {"gate": {"g": ("log_decay", "btg")}}
CHANNELS: dict[str, Mapping[str, Value]] = {"channel gate": {"g": ("log_decay", "btgk")}}
# Of `fused_recurrent_gla` alone under another name.
FUSED_CHANNELS: dict[str, Mapping[str, Value]] = {"channel gate": {"gk": ("log_decay", "btgk")}}
FLA = tuple(
    # Linear attention is normalized by default in one of its two forms.
    fla(f"{form}_{name}", rules, options, {"normalize": "False"} if name == "linear_attn" else {})
    for form in ("chunk", "fused_recurrent")
    for name, rules, options in (
        ("linear_attn", ("linear",), {}),
        ("simple_gla", ("gated",), GATE),
        ("gla", ("gated",), FUSED_CHANNELS if form == "fused_recurrent" else CHANNELS),
        ("delta_rule", ("delta",), BETA),
        ("gated_delta_rule", ("gated_delta",), BETA | GATE),
        ("kda", ("gated_delta",), BETA | CHANNELS),
    )
)
LIKES = {
    like.name: like
    for like in (
        ATTEND, RECUR, SDPA, FLEX, JAX_NN, KERAS, FLASH, FLASH_VARLEN, FLASH_CACHE, XFORMERS, PALLAS_GPU, PALLAS_TPU,
        SPLASH, PAGED, *FLA,
    )
}  # fmt: skip


def like_of(like: "str | Like") -> Like:
    """A signature by its name.

    Raises:
        ValueError: an unknown name.
    """
    if isinstance(like, Like):
        return like
    if like not in LIKES:
        raise ValueError(f"like: expected one of {', '.join(LIKES)}, got {like!r}; use one or make a `Like`")
    return LIKES[like]
