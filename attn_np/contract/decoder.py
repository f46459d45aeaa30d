"""Decoder attention: the attention of today's decoder-only models; config fields switch its parts on."""

from dataclasses import dataclass
from typing import Any

from attn_np.contract import _base
from attn_np.contract._base import Arg, Param, Preset, Spec
from attn_np.contract._norms import Norm, check_norm, idle_fields, norm_of, relations_broken_by_context_norm
from attn_np.contract._rotary import Rotary


@dataclass(frozen=True, kw_only=True)
class Config(Rotary):
    """Fields of decoder attention.

    Attributes:
        num_heads: how many query heads attend.
        num_kv_heads: how many heads of keys and values there are; num_heads by default, which it must divide.
        scale: factor on the scores; 1/sqrt(head_dim) by default, for norm="l2" sqrt(head_dim); 1.0 for unscaled.
        causal: a position sees itself and earlier ones.
        window: (left, right), how many positions before and after its own a query sees; None is no limit. A model
            with a window of W tokens, the query's own included, has left = W - 1.
        chunk_size: a query sees the keys of its own chunk of this many positions; None: no chunks.
        qkv_bias: biases on the projections of queries, keys, values and gates.
        output_bias: a bias on the output projection.
        norm: of queries and keys: "rms", "layer" (the mean is subtracted first), "l2" (to length 1), or None.
        norm_position: "before_rotation", or "after_rotation" as in Hunyuan and nanochat.
        norm_over: "head": each head by itself; "all": all heads of a position together; a number: so many neighbouring
            heads together.
        norm_weight: "shared": one weight for all heads; "own": each head has its own; "tied": each head has its own,
            which queries and keys share; None: no weight.
        norm_bias: the norm adds a bias, with the axes of its weight; for norm="layer".
        norm_offset: added to the stored norm weight; 1.0 in Gemma 3 and Qwen3-Next.
        norm_eps: added under the root.
        context_norm: of the heads' outputs, before the gate and the output projection: as norm.
        context_norm_over: as norm_over; "all" in BitNet and EVA-02.
        context_norm_weight: as norm_weight, "shared", "own" or None.
        context_norm_bias: as norm_bias.
        context_norm_eps: added under the root of that norm.
        value_norm: values are divided by the root of their mean square, each head by itself, without a weight, as in
            Gemma 3n and Gemma 4; by norm_eps.
        keys_as_values: values are the projected keys, before their norm and rotation: there is no w_v (Gemma 4's layers
            without a window).
        shared_kv: keys and values are those of an earlier layer: there are no w_k and w_v. A call gets them as
            `shared_k` and `shared_v`, of the earlier layer's `keys_and_values`, and a step reads that layer's cache.
            Gemma 3n, Gemma 4 and YOCO's second half.
        clip_qkv: queries, keys and values are clipped to numbers of at most this size, after the norm and before the
            rotation (a norm after the rotation comes later); None: no limit.
        temperature_growth: part of a factor on the queries that grows with the position, so that weights stay sharp
            among many keys: 1 + temperature_growth * log(1 + floor((position + 1) / temperature_interval)); 0.1 in
            Llama 4. None: no factor.
        temperature_interval: how many positions that factor stays the same; 8192 in Llama 4.
        sinks: each head has a learned score that takes part in the softmax and has no value.
        gate: each head's output, after its norm, is multiplied by a gate that is computed from the input.
        gate_over: "element": each number of a head's output has a gate; "head": all of them have one.
        gate_activation: "sigmoid", "silu" or "softplus".
        forget_gate: a gate between 0 and 1 of each position and head: an earlier key weighs less by the product of the
            gates since then, as what a recurrent state holds would fade (FoX). Their logarithms are summed from the
            first position on: in float32, with gates near 0.5, about 3 of 7 digits are gone after 2,000 positions.
    """

    class_name = "DecoderAttention"
    family = "heads"
    title = "Decoder attention"
    idea = (
        "Decoder-only models share a frame, causal attention with grouped heads and rotary positions, and differ in "
        "what they add to it. Here each addition is a field."
    )
    formula = (
        r"q_h = R\,\mathrm{norm}(x w_{q,h}),\quad k_g = R\,\mathrm{norm}(x w_{k,g}),\quad "
        r"y = b_o + \sum_h \sigma(x w_{gate,h}) \odot \left(\mathrm{softmax}\!\left(\tfrac{1}{\sqrt{K}}\, "
        r"q_h k_{\lfloor h/r \rfloor}^\top\right) v_{\lfloor h/r \rfloor}\right) w_{o,h}"
    )
    notation = {
        "q_norm.weight, k_norm.weight (Qwen 3, Gemma 3)": 'w_q_norm, w_k_norm: norm_weight="shared"',
        "q_norm.weight, k_norm.weight (OLMo 2, Cohere)": 'w_q_norm_heads, w_k_norm_heads: norm_weight="own"',
        "sinks (gpt-oss)": "sinks",
        "second half of q_proj, per head (Qwen3-Next)": "w_gate",
        "Llama, Falcon 7B": "num_kv_heads (1 for Falcon 7B); Llama 3.1 also rope_scaling='llama3', rope_base=500000.0",
        "Mistral": "num_kv_heads, window=(W - 1, None)",
        "Qwen 2; Qwen 3": "qkv_bias; norm='rms'",
        "Laguna": "norm='rms', gate, gate_over='head', gate_activation='softplus'",
        "Qwen3-Next": "norm='rms', norm_offset=1.0, gate, a quarter of the head in rotary_dim",
        "Gemma 2": "softcap=50.0, scale=query_pre_attn_scalar**-0.5, a window in every other layer",
        "Gemma 3": "norm='rms', norm_offset=1.0, scale; most with a window, the rest with rope_base=1e6, 'linear'",
        "Phi-1, Phi-2, GPT-NeoX": "qkv_bias, output_bias, rotary_dim; Phi-3: rope_scaling='longrope'",
        "GPT-J": "rope_layout='interleaved', rotary_dim=64",
        "Cohere Command R+": "rope_layout='interleaved', norm='layer', norm_weight='own'",
        "OLMo": "clip_qkv; OLMoE: norm='rms', norm_over='all', norm_weight='own', clip_qkv",
        "Llama 4, layers with rotation": "rope_layout='interleaved', norm='rms', norm_weight=None, chunk_size=8192",
        "attn_scale, floor_scale of attn_temperature_tuning (Llama 4, layers without rotation)": "temperature_growth, "
        "temperature_interval, rope_base=None",
        "OLMo 2": "norm='rms', norm_over='all', norm_weight='own'",
        "query_layernorm, key_layernorm (Hunyuan)": "w_q_norm, w_k_norm: norm='rms', norm_position='after_rotation'",
        "attn_sub_norm (BitNet), inner_attn_ln (Magneto)": "w_context_norm_heads: context_norm='rms' or 'layer', "
        "context_norm_over='all', context_norm_weight='own'",
        "s_qk (nGPT)": "w_qk_norm_heads: norm='l2', norm_position='after_rotation', norm_weight='tied'",
        "Qwen2-VL": "qkv_bias, rope_sections=(16, 24, 24)",
        "Qwen3-VL": "norm='rms', rope_sections=(24, 20, 20), rope_sections_interleaved",
        "FoX (LLaMA)": "forget_gate, rope_base=None; FoX (Pro): also norm='rms', context_norm='rms' and a gate",
        "f_t, c_t, D_ij (FoX)": "exp(log_forget); its running sum, minus key_bias; key_bias of j minus that of i",
        "gpt-oss": "sinks, both biases, rope_scaling='yarn', yarn_truncate=False, a window in every other layer",
    }
    cost = "time b t t h (k + v); the cache holds g (k + v) numbers for each position"
    paper = (
        "Touvron et al. 2023, Llama 2, arXiv:2307.09288, section 2.2 (shared heads, rotary positions); its parts: Su "
        "et al. 2021, arXiv:2104.09864; Ainslie et al. 2023, arXiv:2305.13245; Henry et al. 2020, arXiv:2010.04245; "
        "Gemma Team 2024, arXiv:2408.00118, section 2 (softcap); OpenAI 2025, arXiv:2508.10925 (sinks); Qiu et al. "
        "2025, arXiv:2505.06708 (gate); Lin et al. 2025, arXiv:2503.02130, section 3 (forget_gate); Wang et al. 2022, "
        "arXiv:2210.06423 (context_norm); Loshchilov et al. 2024, arXiv:2410.01131, section 2.3.2 (l2)"
    )
    equals = (
        "num_kv_heads=num_heads, qkv_bias, output_bias and nothing else: rotary with causal=True",
        "rope_base=None, qkv_bias, output_bias: gqa in one sequence",
    )
    traps = (
        "queries and keys are normalised before they are rotated, in Hunyuan afterwards, where the norm's weights meet "
        "rotated dimensions; names of weights do not tell the order",
        "Gemma 3 and Qwen3-Next store norm weights minus 1: norm_offset=1.0; without it the norms are close to 0",
        "transformers stores Llama's w_q and w_k for rope_layout='half'; Meta's own files are for 'interleaved'",
        "a sliding window of 4096 tokens counts the query's own: left is 4095",
        "Cohere's norm has a weight for each head, Qwen 3's one for all, OLMo 2's norm is over all heads at once",
        "the scale of Gemma is that of query_pre_attn_scalar, not of head_dim",
        "Llama 4's temperature counts the query's own position, floor((position + 1) / interval); Ministral 3 does not",
        "the gate multiplies the heads' outputs before the output projection, not the layer's output",
        "the norm of the contexts comes before the gate: normed afterwards, the gate's size would be lost",
        "a forget gate of the query's own position does not touch its own key; only what lies between the two fades",
        "a forget gate at padding must be 1: else what stands before the padding fades",
    )

    d_model: int
    num_heads: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    value_head_dim: int | None = None
    output_dim: int | None = None
    scale: float | None = None
    causal: bool = True
    window: tuple[int | None, int | None] | None = None
    chunk_size: int | None = None
    softcap: float | None = None
    dropout: float = 0.0
    qkv_bias: bool = False
    output_bias: bool = False
    norm: str | None = None
    norm_position: str = "before_rotation"
    norm_over: str | int = "head"
    norm_weight: str | None = "shared"
    norm_bias: bool = False
    norm_offset: float = 0.0
    norm_eps: float = 0.000001
    context_norm: str | None = None
    context_norm_over: str | int = "head"
    context_norm_weight: str | None = "shared"
    context_norm_bias: bool = False
    context_norm_eps: float = 0.000001
    value_norm: bool = False
    keys_as_values: bool = False
    shared_kv: bool = False
    clip_qkv: float | None = None
    temperature_growth: float | None = None
    temperature_interval: int | None = None
    sinks: bool = False
    gate: bool = False
    gate_over: str = "element"
    gate_activation: str = "sigmoid"
    forget_gate: bool = False
    rope_base: float | None = 10000.0
    rotary_dim: int | None = None
    rope_layout: str = "half"
    rope_sections: tuple[int, ...] | None = None
    rope_sections_interleaved: bool = False
    max_positions: int | None = None
    rope_scaling: str | None = None
    rope_scaling_factor: float | None = None
    original_max_positions: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    yarn_truncate: bool = True
    attention_factor: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self.check_positive("d_model", "num_heads", "num_kv_heads", "head_dim", "value_head_dim", "output_dim")
        self.check_number("scale")
        self.check_number("norm_offset")
        self.check_number("softcap", above=0.0)
        self.check_number("clip_qkv", above=0.0)
        self.check_number("temperature_growth")
        self.check_positive("temperature_interval", "chunk_size")
        self.check_window("window")
        self.check_rate("dropout")
        self.check_flag("causal", "qkv_bias", "output_bias", "sinks", "gate", "forget_gate")
        self.check_flag("value_norm", "keys_as_values", "shared_kv")
        self.check_one_of("norm_position", ("before_rotation", "after_rotation"))
        self.check_one_of("gate_over", ("element", "head"))
        self.check_one_of("gate_activation", ("sigmoid", "silu", "softplus"))
        self.check_divisible("d_model", "num_heads", unless="head_dim")
        fits = self.num_heads % (self.num_kv_heads or self.num_heads) == 0
        got = f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}"
        self.require(fits, "num_heads divisible by num_kv_heads", got, "change one of them")
        check_norm(self, "norm", num_heads=self.num_heads, num_kv_heads=self.num_kv_heads or self.num_heads)
        check_norm(self, "context_norm", num_heads=self.num_heads)
        if self.norm_offset != 0.0:
            learned = self.norm is not None and self.norm_weight is not None
            got = f"norm={self.norm!r}, norm_weight={self.norm_weight!r}"
            self.require(learned, "a norm with a weight for norm_offset=", got, "leave norm_offset out")
        if (self.temperature_growth is None) != (self.temperature_interval is None):
            expected = "both of temperature_growth and temperature_interval, or none"
            got = f"temperature_growth={self.temperature_growth}, temperature_interval={self.temperature_interval}"
            raise _base.field_error(self.variant, expected, got, "give both or none of them")
        if self.forget_gate:
            hides = {name: getattr(self, name) for name in ("window", "chunk_size") if getattr(self, name) is not None}
            hides |= {} if self.causal else {"causal": False}
            hides |= {"sinks": True} if self.sinks else {}
            got, fix = ", ".join(f"{name}={value}" for name, value in hides.items()), "leave one of them out"
            expected = "a causal layer that sees all keys and has no sinks for forget_gate="
            self.require(not hides, expected, got, fix)
        if self.keys_as_values:
            k = self.sizes()["k"]
            fits, fix = self.sizes()["v"] == k, "leave value_head_dim out"
            self.require(fits, f"value_head_dim={k} for keys_as_values=", self.value_head_dim, fix)
        if self.shared_kv:
            names = ("keys_as_values", "value_norm", "forget_gate", "norm_weight")
            hides = {name: getattr(self, name) for name in names if getattr(self, name) in (True, "tied")}
            got, fix = ", ".join(f"{name}={value!r}" for name, value in hides.items()), "leave one of them out"
            self.require(not hides, "no field of keys and values of its own for shared_kv=", got, fix)
        self.check_optional_rotary()
        if self.temperature_growth is not None:
            fix = "leave one of them out"
            on_one = self.rope_sections is None
            self.require(on_one, "no rope_sections with temperature_growth=", "both", fix)

    def check(self, dtype: str | None, **specs: Spec | None) -> dict[str, int]:
        given = next((name for name in ("shared_k", "shared_v") if specs.get(name) is not None), None)
        fix = "build it with shared_kv=True"
        self.require(self.shared_kv or given is None, f"no {given} in a layer with keys of its own", "some", fix)
        return super().check(dtype, **specs)

    def check_cos_sin(self, pair: tuple[Spec, Spec], sizes: dict[str, int], dtype: str | None, **which: str) -> None:
        fits = self.temperature_growth is None
        self.require(fits, "positions as integers for temperature_growth=", "(cos, sin)", "pass those")
        super().check_cos_sin(pair, sizes, dtype, **which)

    def scale_or_default(self, width: int) -> float:
        return width**0.5 if self.scale is None and self.norm == "l2" else super().scale_or_default(width)

    def norms(self) -> tuple[Norm | None, Norm | None]:
        """The norm of queries and keys, and that of the contexts."""
        return norm_of(self), norm_of(self, "context_norm")

    def norm_of_values(self) -> Norm:
        """The norm of values, where `value_norm` asks for one."""
        return Norm("rms", weight=None, eps=self.norm_eps)

    def sizes(self) -> dict[str, int]:
        k, h = self.head_dim or self.d_model // self.num_heads, self.num_heads
        gates = {"f": (self.value_head_dim or k) if self.gate_over == "element" else 1}
        return {
            "d": self.d_model,
            "h": h,
            "g": self.num_kv_heads or h,
            "k": k,
            "v": self.value_head_dim or k,
            "o": self.output_dim or self.d_model,
            **(gates if self.gate else {}),
            **self.position_sizes(),
        }

    def own_params(self) -> dict[str, Param]:
        params = {"w_q": Param("d h k", "d"), "w_k": Param("d g k", "d"), "w_v": Param("d g v", "d")}
        biases = {"b_q": Param("h k", "d"), "b_k": Param("g k", "d"), "b_v": Param("g v", "d")}
        absent = "kv" if self.shared_kv else "v" if self.keys_as_values else ""
        for letter in absent:
            del params[f"w_{letter}"], biases[f"b_{letter}"]
        if self.gate:
            params |= {"w_gate": Param("d h f", "d")}
            biases |= {"b_gate": Param("h f", "d")}
        params |= {"w_o": Param("h v o", "h v")}
        params |= {"w_forget": Param("d h", "d"), "b_forget": Param("h", "d")} if self.forget_gate else {}
        params |= biases if self.qkv_bias else {}
        params |= {"b_o": Param("o", "h v")} if self.output_bias else {}
        norm, context_norm = self.norms()
        of_keys = {} if self.shared_kv else {"k": "g k"}
        params |= {} if norm is None else norm.params(q="h k", **of_keys)
        params |= {} if context_norm is None else context_norm.params(context="h v")
        return params | ({"sinks": Param("h", "k")} if self.sinks else {})

    def arguments(self) -> dict[str, Arg]:
        shared = {"shared_k": Arg("b t g k", cached=True), "shared_v": Arg("b t g v", cached=True)}
        return super().arguments() | (shared if self.shared_kv else {})

    def meaning(self) -> dict[str, Any]:
        idle = (*idle_fields(self, "norm"), *idle_fields(self, "context_norm"))
        idle += () if self.rope_base is not None else ("norm_position",)
        idle += () if self.gate else ("gate_over", "gate_activation")
        return {name: value for name, value in super().meaning().items() if name not in idle}

    def cache_slots(self) -> int | None:
        left, chunk = super().cache_slots(), self.chunk_size
        return left if chunk is None else chunk if left is None else min(left, chunk)

    def broken_relations(self) -> dict[str, str]:
        reasons = {}
        if self.chunk_size is not None:
            names = "weights_add_up_to_one", "a_large_bias_decides", "indifferent_scores_share_evenly"
            reasons |= dict.fromkeys(("keys_have_no_order", *names), "keys of other chunks are hidden too")
            why = "without some keys, others belong to another chunk"
            reasons["hidden_keys_may_as_well_not_be_there"] = why
        if self.rope_base is not None:
            reasons["keys_have_no_order"] = "scores depend on the distance of queries and keys"
        if self.forget_gate:
            reasons["keys_have_no_order"] = "a key weighs less by the gates between it and the query"
            reasons["a_large_bias_decides"] = "the first query sees one key, whatever its bias"
        if self.temperature_growth is not None:
            reasons["keys_have_no_order"] = "scores depend on the query's position"
        if self.norm is not None:
            reasons["twice_the_scores_square_the_weights"] = "larger queries are normalised to the same length"
            reasons["the_scale_belongs_to_the_queries"] = "larger queries are normalised to the same length"
        if self.norm == "l2":
            reasons["the_default_scale_is_that_of_the_head"] = "of queries and keys of length 1 it is sqrt(K)"
        if self.norm_bias:
            reasons["indifferent_scores_share_evenly"] = "of a query that is 0 the norm leaves its bias"
        if self.clip_qkv is not None:
            reasons["twice_the_scores_square_the_weights"] = "larger queries are clipped"
            reasons["the_scale_belongs_to_the_queries"] = "larger queries are clipped"
            reasons["the_output_is_the_weights_times_the_values"] = "the values are clipped"
        if self.norm is not None and self.norm_over != "head":
            reasons["heads_stand_alone"] = "the norm of a head depends on the other heads"
        if self.context_norm is not None:
            reasons |= relations_broken_by_context_norm(self, self.context_norm_over)
        if self.sinks:
            reasons["weights_add_up_to_one"] = "the sink takes a share of every row"
            reasons["a_constant_on_all_scores_changes_nothing"] = "the sink's score stays where it is"
            reasons["twice_the_scores_square_the_weights"] = "the sink's score stays where it is"
            reasons["indifferent_scores_share_evenly"] = "the sink takes a share of every row"
        if self.gate:
            reasons["the_output_is_the_weights_times_the_values"] = "the gate comes between them"
        return reasons

    def cache_axes(self) -> dict[str, str]:
        own = {"log_forget": "b s h"} if self.forget_gate else {}
        return {"k": "b s g k", "v": "b s g v"} | own if self.causal else {}


EXAMPLES = {
    "sinks": Config(
        d_model=5,
        num_heads=6,
        num_kv_heads=3,
        head_dim=7,
        value_head_dim=2,
        window=(3, None),
        qkv_bias=True,
        output_bias=True,
        norm="layer",
        norm_bias=True,
        norm_offset=1.0,
        temperature_growth=0.5,
        temperature_interval=2,
        sinks=True,
        rotary_dim=4,
        max_positions=13,
        rope_scaling="yarn",
        rope_scaling_factor=4.0,
        original_max_positions=29,
        beta_fast=2.5,
        beta_slow=0.25,
        yarn_truncate=False,
    ),
    "gated": Config(
        d_model=7,
        num_heads=2,
        num_kv_heads=1,
        head_dim=6,
        value_head_dim=3,
        scale=0.5,
        causal=False,
        softcap=2.5,
        dropout=0.25,
        qkv_bias=True,
        norm="rms",
        norm_over="all",
        norm_weight="own",
        norm_eps=0.0625,
        shared_kv=True,
        clip_qkv=0.5,
        gate=True,
        rope_base=50.0,
        rope_layout="interleaved",
        rope_sections=(2, 1),
        rope_sections_interleaved=True,
        max_positions=13,
        rope_scaling="llama3",
        rope_scaling_factor=3.0,
        original_max_positions=23,
        low_freq_factor=0.5,
        high_freq_factor=2.0,
    ),
    "plain": Config(
        d_model=11,
        num_heads=3,
        head_dim=5,
        output_dim=7,
        chunk_size=3,
        norm="l2",
        norm_position="after_rotation",
        norm_weight="tied",
        keys_as_values=True,
        context_norm="rms",
        context_norm_over="all",
        context_norm_weight=None,
        clip_qkv=1.5,
        rotary_dim=4,
        rope_scaling="longrope",
        original_max_positions=1,
        attention_factor=1.25,
        short_factor=(1.0, 1.5),
        long_factor=(1.25, 3.0),
    ),
    "forgetting": Config(
        d_model=7,
        num_heads=6,
        num_kv_heads=2,
        head_dim=3,
        value_head_dim=5,
        context_norm="layer",
        context_norm_bias=True,
        gate=True,
        gate_over="head",
        gate_activation="softplus",
        forget_gate=True,
        rope_base=None,
    ),
    "normed": Config(
        d_model=5,
        num_heads=6,
        num_kv_heads=2,
        head_dim=10,
        value_head_dim=3,
        norm="layer",
        norm_position="after_rotation",
        norm_over=2,
        norm_weight="own",
        norm_bias=True,
        value_norm=True,
        rotary_dim=4,
        rope_scaling="proportional",
        rope_scaling_factor=1.5,
        context_norm="layer",
        context_norm_over=3,
        context_norm_weight="own",
        context_norm_bias=True,
        context_norm_eps=0.0625,
    ),
}

PRESETS = {
    "forgetting": Preset(
        title="Forgetting attention (FoX)",
        idea=(
            "A recurrent layer forgets by gates, and softmax attention need not do without: the weight of an earlier "
            "key is multiplied by all forget gates between it and the query. Positions need no other encoding."
        ),
        paper=(
            "Lin, Nikishin, He, Courville 2025, Forgetting Transformer: Softmax Attention with a Forget Gate, "
            "arXiv:2503.02130, section 3.1; the Pro layer's shifts of keys and values are not here"
        ),
        fields={"forget_gate": True, "rope_base": None},
    ),
    "ngpt": Preset(
        title="Normalised Transformer's attention (nGPT)",
        idea=(
            "Queries and keys have length 1 after they are rotated, so a score is the cosine of their angle, times "
            "learned scales of a head's dimensions, which queries and keys share, and sqrt(K)."
        ),
        paper=(
            "Loshchilov, Hsieh, Sun, Ginsburg 2024, nGPT: Normalized Transformer with Representation Learning on the "
            "Hypersphere, arXiv:2410.01131, section 2.3.2; weights and hidden states of length 1 are the model's"
        ),
        fields={"norm": "l2", "norm_position": "after_rotation", "norm_weight": "tied"},
    ),
}
