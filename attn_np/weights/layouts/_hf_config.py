"""A model's `config.json`, read field by field: fields that no reader knows are refused at the end."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from sys import float_info
from typing import Any, NoReturn

from attn_np.contract._base import is_number
from attn_np.weights._errors import ConfigMismatchError, NoAttentionError, first_names
from attn_np.weights._paths import open_regular
from attn_np.weights._quantization import Scheme, scheme_of

CONFIG = "config.json"
# Where null is not the same as a field that a file leaves out, and a type's own default.
NULL_SAYS = ("head_dim", "num_key_value_heads", "q_lora_rank", "sliding_window")
MAX_CONFIG = 2**22
MANY = 2**5 * 3**2 * 5 * 7  # divisible by any number of heads that is likely
ALLOW = "pass allow= with the names of those that leave attention as it is"

# Our fields of rotary positions that weights do not depend on. (Weights do depend on `rope_layout`.)
ROTARY_FIELDS = (
    "rope_base",
    "rotary_dim",
    "max_positions",
    "rope_scaling",
    "rope_scaling_factor",
    "original_max_positions",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "yarn_truncate",
    "attention_factor",
    "short_factor",
    "long_factor",
)
# Fields of `transformers` that leave attention as it is in evaluation mode: the vocabulary, the rest of the layer,
# its experts, training, generation, outputs, and who wrote the file.
IRRELEVANT_FIELDS = frozenset({
    "_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "model_type", "transformers_version",
    "_commit_hash", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "unk_token_id", "tie_word_embeddings",
    "type_vocab_size", "num_hidden_layers", "intermediate_size", "hidden_act", "hidden_activation", "mlp_bias",
    "layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "max_position_embeddings", "initializer_range",
    "initializer_factor", "hidden_dropout_prob", "hidden_dropout", "attention_dropout",
    "attention_probs_dropout_prob", "classifier_dropout", "classifier_dropout_prob", "resid_pdrop", "embd_pdrop",
    "attn_pdrop", "activation_dropout", "dropout", "layerdrop", "use_cache", "pretraining_tp",
    "gradient_checkpointing", "chunk_size_feed_forward", "use_bfloat16", "tf_legacy_loss", "torchscript",
    "output_attentions", "output_hidden_states", "return_dict", "use_return_dict", "attn_implementation",
    "_attn_implementation", "id2label", "label2id", "num_labels", "problem_type", "finetuning_task",
    "task_specific_params", "tokenizer_class", "prefix", "max_length", "min_length", "do_sample", "early_stopping",
    "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "output_scores", "return_dict_in_generate", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "is_encoder_decoder",
    "tie_encoder_decoder", "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
    "shared_expert_intermediate_size", "norm_topk_prob", "output_router_logits", "router_aux_loss_coef",
    "router_jitter_noise", "decoder_sparse_step", "mlp_only_layers", "final_logit_softcapping", "model_max_length",
    "is_llama_config", "transformers.js_config", "n_routed_experts", "n_shared_experts", "n_group", "topk_group",
    "topk_method", "scoring_func", "first_k_dense_replace", "moe_layer_freq", "routed_scaling_factor", "aux_loss_alpha",
    "seq_aux", "ep_size", "num_nextn_predict_layers", "num_shared_experts",
})  # fmt: skip
# Fields of published files that some families do not have, and the values with which they leave attention as it is:
# switches that are off.
IRRELEVANT_VALUES: Mapping[str, tuple[Any, ...]] = {
    "use_mrope": (False,),
    "use_sliding_window": (False,),
    "rope_interleaved": (False,),
}
# What the names of fields of the experts and of other parts around attention begin with.
IRRELEVANT_STARTS = ("moe_", "router_", "mlp_", "mamba_", "ssm_")
# Numbers that matter only beside a switch that is on.
SWITCHED_FIELDS = {"max_window_layers": "use_sliding_window"}


class HFConfig:
    """The fields of a `config.json`. A null counts as absent, except for `is_null`.

    Attributes:
        path: the file's path.
        prefix: what stands before the fields: "" for the whole file, "rope_scaling." for that object.
    """

    def __init__(self, path: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path, self.prefix = path, prefix
        self._values = {key: value for key, value in values.items() if value is not None}
        self._nulls = values.keys() - self._values.keys()
        self._read: set[str] = set()
        self._raw = dict(values)
        self._alternatives: dict[str, tuple[Any, ...]] = {}
        self._nested: dict[str, HFConfig] = {}
        self._irrelevant: Collection[str] = () if prefix else IRRELEVANT_FIELDS
        self._own_names: Mapping[str, str] = {}
        self._layer_counts: list[int] = []

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def unread_copy(self) -> "HFConfig":
        """The same fields, none of them read yet."""
        copy = HFConfig(self.path, self._raw, self.prefix)
        copy._layer_counts = self._layer_counts
        return copy

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a field, of any type."""
        self._read.add(key)
        if key not in self._values:
            self._note_alternatives(key, *others_than(default))
        return self._values.get(key, default)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer from 0; required if there is no default."""
        value = self._required(key, default)
        return value if type(value) is int and value >= 0 else self.refuse(key, "an integer from 0")

    def number(self, key: str, default: float | None = None) -> float:
        """A number that float64 can hold; required if there is no default."""
        value = self._required(key, default)
        finite = is_number(value) and abs(value) <= float_info.max
        return value if finite else self.refuse(key, "a finite number")

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false; required if there is no default."""
        value = self._required(key, default)
        return value if isinstance(value, bool) else self.refuse(key, "true or false")

    def model_type(self) -> str:
        """The name of the model's type; empty if there is none."""
        kind = self._values.get("model_type")
        return kind if isinstance(kind, str) else ""

    @contextmanager
    def seen_as(self, renamed: Mapping[str, str], defaults: Mapping[str, Any]) -> "Iterator[HFConfig]":
        """The fields as a family's reader knows them; what it reads of them counts as read here.

        Args:
            renamed: names in the family to names here.
            defaults: names in the family to values that stand in for absent fields.
        """
        here = {name: renamed.get(name, name) for name in (*self._raw, *renamed)}
        names = {family: own for family, own in here.items() if own in self._raw and family not in renamed.values()}
        stated = {x: self._raw[own] for x, own in names.items()}
        kept = {x: value for x, value in stated.items() if value is not None or x in NULL_SAYS or x not in defaults}
        other = HFConfig(self.path, dict(defaults) | kept, self.prefix)
        other._irrelevant, other._own_names = self._irrelevant, {**self._own_names, **renamed}
        other._layer_counts = self._layer_counts
        try:
            yield other
        finally:
            self._read |= {renamed.get(key, key) for key in other._read}
            self._alternatives |= {renamed.get(key, key): others for key, others in other._alternatives.items()}
            self._nested |= {renamed.get(key, key): nested for key, nested in other._nested.items()}

    def only(self, key: str, *known: Any) -> Any:
        """An optional field that must be one of `known`; anything else is unsupported."""
        value = self.get(key)
        if value is None:
            self._note_alternatives(key, *known)
        if value is None or any(type(value) is type(one) and value == one for one in known):
            return value
        return self.refuse(key, f"one of {', '.join(map(repr, known))}, which our layers support")

    def is_null(self, key: str) -> bool:
        """Whether a field is null, for families where null is not the same as absent."""
        self._read.add(key)
        return key in self._nulls

    def check_layer(self, key: str, layer: int) -> None:
        """Refuse a layer that is not below the number of layers, by this family's name for it."""
        count = self.get(key)
        if type(count) is int:
            self.count_layers(count)
        if type(count) is int and layer >= count:
            expected, fix = f"more than {layer}, for layer {layer}", f"pass layer= from 0 to {count - 1}"
            key = self.prefix + self._own_names.get(key, key)
            raise ConfigMismatchError(self.path, key, expected, str(count), fix)

    def count_layers(self, count: int) -> None:
        """Note how many layers a field says that there are."""
        self._layer_counts.append(count)

    def layer_count(self) -> int | None:
        """The number of layers, by the fields that were checked; None if the file has none of them."""
        return min(self._layer_counts, default=None)

    def skip(self, *keys: str) -> None:
        """Accept fields that leave this family's attention as it is."""
        self._read.update(keys)

    def skip_objects(self) -> None:
        """Accept all objects among the fields: they are about other layers."""
        self.skip(*(key for key, value in self._values.items() if isinstance(value, dict)))

    def nested(self, key: str) -> "HFConfig":
        """The fields of an object among the fields; none if it is absent."""
        if key not in self._nested:
            value = self.get(key, {})
            if not isinstance(value, dict):
                self.refuse(key, "an object")
            self._nested[key] = HFConfig(self.path, value, f"{self.prefix}{key}.")
            self._nested[key]._layer_counts = self._layer_counts
        return self._nested[key]

    def part(self, key: str, values: Mapping[str, Any]) -> "HFConfig":
        """The fields of a model that is a part of this one, whose own fields are about its other parts."""
        part = HFConfig(self.path, values, f"{self.prefix}{key}.")
        part._irrelevant, part._layer_counts = IRRELEVANT_FIELDS, self._layer_counts
        return part

    def text_config(self) -> "HFConfig":
        """The fields of the text model: of a model that sees as well, those of its `text_config`, if it has one."""
        if "text_config" not in self:
            return self
        text = self.nested("text_config")
        text._irrelevant = IRRELEVANT_FIELDS
        return text

    def layer_type(self, layer: int, default: Callable[[int], str], *known: str) -> str:
        """A layer's entry in `layer_types`, which must be one of `known`; `default` gives it if the field is absent."""
        types = self.get("layer_types", [])
        if not isinstance(types, list) or (types and layer >= len(types)):
            self.refuse("layer_types", f"a list with an entry for layer {layer}")
        kind = types[layer] if types else default(layer)
        if not types:
            self._note_alternatives("layer_types", *([other] * (layer + 1) for other in known))
        if kind in known:
            return kind
        return self.refuse("layer_types", f"one of {', '.join(known)} for layer {layer}", kind)

    def refuse_layer(self, key: str, expected: str, *got: Any) -> NoReturn:
        """Refuse a layer that does not attend, as the value of a field says.

        Raises:
            NoAttentionError: always.
        """
        self.refuse(key, expected, *got, error=NoAttentionError)

    def refuse(
        self, key: str, expected: str, *got: Any, error: type[ConfigMismatchError] = ConfigMismatchError
    ) -> NoReturn:
        """Refuse the value of a field.

        Raises:
            ConfigMismatchError: always, or this subclass of it.
        """
        value = repr(got[0] if got else self._values[key])[:200] if got or key in self._values else "none"
        fix = "build the layer by hand, or use the library the model was made for"
        raise error(self.path, self.prefix + self._own_names.get(key, key), expected, value, fix)

    def refuse_unread(self, allow: Collection[str] = (), fix: str = ALLOW) -> None:
        """Refuse fields that were not read, as they might change what attention computes.

        Args:
            allow: names of fields to accept.
            fix: what a caller can do about the others.

        Raises:
            ConfigMismatchError: naming them.
        """
        unread = self.unread()
        unread -= {key for key in unread if key in allow or key[len(self.prefix) :] in allow}
        if "quantization_config" in unread:
            self.refuse_quantized()
        if unread:
            got = f"{first_names(sorted(unread))}, unknown here"
            raise ConfigMismatchError(self.path, sorted(unread)[0], "fields with a known meaning", got, fix)

    def scheme(self) -> Scheme:
        """How the weights are quantised.

        Raises:
            ConfigMismatchError: a scheme whose scales are not applied here.
        """
        scheme = scheme_of(self.get("quantization_config"))
        return self.refuse_quantized() if isinstance(scheme, str) else scheme

    def refuse_quantized(self) -> NoReturn:
        """Refuse quantised weights.

        Raises:
            ConfigMismatchError: always, naming the scheme.
        """
        scheme, fix = scheme_of(self.get("quantization_config")), "get the model unquantised"
        if isinstance(scheme, str):
            got, fix = f"quantised ones ({scheme}), which are not read", f"{fix}, or write it again so with its library"
        else:
            got = f"quantised ones ({scheme.words()})"
            fix = f"pass dequantize=True to load_pretrained to have the scales applied, or {fix}"
        raise ConfigMismatchError(self.path, "quantization_config", "weights in floating point", got, fix)

    def unread(self) -> set[str]:
        """Names of the fields that were not read and may matter."""
        unread = self._values.keys() - self._read - set(self._irrelevant)
        own = {self.prefix + key for key in unread if not self._is_off(key)}
        if self._irrelevant:
            own = {key for key in own if not key[len(self.prefix) :].startswith(IRRELEVANT_STARTS)}
        return own.union(*(nested.unread() for nested in self._nested.values()))

    def _is_off(self, key: str) -> bool:
        """Whether a field is a switch that is off, or belongs to one."""
        switch = SWITCHED_FIELDS.get(key, key)
        off = self._values.get(switch, False)
        return bool(self._irrelevant) and any(off is value for value in IRRELEVANT_VALUES.get(switch, ()))

    def alternatives(self) -> "Iterator[tuple[str, Any, HFConfig]]":
        """For each field that was asked for and is absent: its name, another value, and the fields with this one."""
        return self._changed(lambda hf: ((key, x) for key, others in hf._alternatives.items() for x in others))

    def without_zeros(self) -> "Iterator[tuple[str, Any, HFConfig]]":
        """For each field that was asked for and is 0: its name, a number above, and the fields with this one."""

        def zeros(hf: HFConfig) -> Iterator[tuple[str, Any]]:
            values = ((key, hf._values.get(key)) for key in sorted(hf._read))
            return ((key, x) for key, value in values if is_number(value) and value == 0 for x in (1, MANY))

        return self._changed(zeros)

    def _changed(
        self, changes: "Callable[[HFConfig], Iterable[tuple[str, Any]]]"
    ) -> "Iterator[tuple[str, Any, HFConfig]]":
        for key, value in changes(self):
            yield self.prefix + key, value, HFConfig(self.path, self._raw | {key: value}, self.prefix)
        for outer, nested in self._nested.items():
            for name, value, inner in nested._changed(changes):
                yield name, value, HFConfig(self.path, self._raw | {outer: inner._raw}, self.prefix)

    def _note_alternatives(self, key: str, *values: Any) -> None:
        if values:
            self._alternatives[key] = values

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        return self.refuse(key, "this field") if value is None else value


def others_than(default: Any) -> tuple[Any, ...]:
    """Values that an absent field might have instead of a family's default; none for words, objects and no default."""
    if isinstance(default, bool):
        return (not default,)
    if isinstance(default, int):
        return (2 * default + 1, default + 1, max(default // 2, 1)) if default > 0 else (1, 8, 64)
    if isinstance(default, float):
        return 2 * default + 1, 2 * default, default / 2, 1.0
    return (reversed_words(default),) if isinstance(default, list) and default else ()


def reversed_words(x: Any) -> Any:
    """A list with the words in it, or in the lists in it, in reverse order."""
    if not isinstance(x, list):
        return x
    return x[::-1] if all(isinstance(y, str) for y in x) else [reversed_words(y) for y in x]


def read_hf_config(path: str) -> HFConfig:
    """The fields of a `config.json`.

    Raises:
        ConfigMismatchError: not a JSON object.
        OSError: no regular file.
    """
    try:
        with open_regular(path, "a JSON file") as stream:
            raw = stream.read(MAX_CONFIG + 1)
        if len(raw) > MAX_CONFIG:
            raise ValueError(f"more than {MAX_CONFIG} bytes")
        fields = json.loads(raw.decode("utf-8"))
        if not isinstance(fields, dict):
            raise ValueError(type(fields).__name__)
    except (ValueError, RecursionError) as error:
        raise ConfigMismatchError(path, None, "a JSON object", str(error)[:200], "correct or remove it") from None
    return HFConfig(path, fields)


def rotary(
    hf: HFConfig,
    head_dim: int,
    *,
    layer_type: str | None = None,
    base: float = 10000.0,
    share: float = 1.0,
    original: int = 0,
    sections: tuple[int, ...] = (),
    interleaved: bool = False,
    max_positions: int = 0,
    in_part: bool = False,
) -> dict[str, Any]:
    """Our fields of rotary positions, from `rope_parameters`, or `rope_theta` and `rope_scaling` of older files.

    Args:
        hf: the model's fields.
        head_dim: a head's width.
        layer_type: the layer's type, for models with parameters for each type.
        base: the default of the base.
        share: the default of the share of a head that is rotated.
        original: the default original length; with 0, that in the scaling object, else `max_position_embeddings`.
        sections: the default of the sections, for a family that counts on several axes.
        interleaved: whether the family's axes take pairs in turn.
        max_positions: the default of the number of positions.
        in_part: whether some pairs of the whole head may stand still.
    """
    max_positions = hf.integer("max_position_embeddings", max_positions)
    base, share = hf.number("rope_theta", base), hf.number("partial_rotary_factor", share)
    rope = hf.nested("rope_parameters" if "rope_parameters" in hf else "rope_scaling")
    if layer_type is not None and layer_type in rope:
        rope.skip_objects()
        rope = rope.nested(layer_type)
    if rope.get("partial_rotary_factor") is not None:
        share = rope.number("partial_rotary_factor")
    if rope.get("rope_theta") is not None:
        base = rope.number("rope_theta")
    width = int(head_dim * share)
    fields: dict[str, Any] = {"rope_base": base}
    fields |= {"rotary_dim": width} if width != head_dim else {}
    scaling = rope.get("rope_type", rope.get("type", "default"))
    rope.skip("type")
    if sections:
        sections_in_file = rope.get("mrope_section", list(sections))
        if not isinstance(sections_in_file, list) or len(sections_in_file) != len(sections):
            rope.refuse("mrope_section", f"a list of {len(sections)} counts of pairs")
        fields |= {"rope_sections": tuple(sections_in_file), "max_positions": max_positions}
        if interleaved:
            rope.only("mrope_interleaved", True)
            fields["rope_sections_interleaved"] = True
        scaling = "default" if scaling == "mrope" else scaling
    if scaling in ("default", "linear", "dynamic", "proportional"):
        rope.skip("original_max_position_embeddings")
    if scaling == "default":
        return fields
    known = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", *(("proportional",) if in_part else ()))
    if scaling not in known:
        rope.refuse("rope_type", f"one of {', '.join(map(repr, known))}", scaling)
    fields["rope_scaling"] = scaling
    if scaling == "proportional":
        fields["rotary_dim"] = 2 * int(share * head_dim // 2)
        return fields | ({"rope_scaling_factor": rope.number("factor")} if "factor" in rope else {})
    if scaling == "dynamic":
        return fields | {"rope_scaling_factor": rope.number("factor"), "original_max_positions": max_positions}
    if scaling == "linear":
        return fields | {"rope_scaling_factor": rope.number("factor")}
    if original or hf.get("original_max_position_embeddings") is not None:
        original = hf.integer("original_max_position_embeddings", original)
    original = original or rope.integer("original_max_position_embeddings", max_positions)
    rope.skip("original_max_position_embeddings")
    fields["original_max_positions"] = original
    if scaling == "llama3":
        names = {"rope_scaling_factor": "factor"} | {name: name for name in ("low_freq_factor", "high_freq_factor")}
        return fields | {ours: rope.number(theirs) for ours, theirs in names.items()}
    factor = max_positions / original if original else 1.0
    if scaling != "longrope" or rope.get("factor") is not None:  # there it follows from the lengths
        factor = rope.number("factor", factor)
    fields["rope_scaling_factor"] = factor
    if "attention_factor" in rope:
        fields["attention_factor"] = rope.number("attention_factor")
    if scaling == "longrope":
        return fields | {name: tuple(rope.get(name, ())) for name in ("short_factor", "long_factor")}
    numerator, denominator = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if numerator and denominator and "attention_factor" not in rope:
        fields["attention_factor"] = yarn_scale(factor, numerator) / yarn_scale(factor, denominator)
    fields |= {name: rope.number(name) for name in ("beta_fast", "beta_slow") if name in rope}
    return fields | ({} if rope.flag("truncate", True) else {"yarn_truncate": False})


def whole_head_rotary(hf: HFConfig, head_dim: int, **options: Any) -> dict[str, Any]:
    """Our fields of rotary positions, for a family that rotates whole heads: `rotary`, whose options it takes.

    Raises:
        ConfigMismatchError: the file says that a part of a head is rotated, which such a model can't do or ignores.
    """
    fields = rotary(hf, head_dim, **options)
    if "rotary_dim" in fields:
        hf.refuse("partial_rotary_factor", "1, as this family rotates whole heads", fields["rotary_dim"] / head_dim)
    return fields


def rotary_of_layer_type(hf: HFConfig, head_dim: int, layer_type: str) -> dict[str, Any]:
    """Our fields of rotary positions, from the parameters that `rope_parameters` has for a type of layers.

    Raises:
        ConfigMismatchError: it has none, or none that say the base.
    """
    types = hf.nested("rope_parameters")
    if layer_type not in types:
        types.refuse(layer_type, "the positions of such layers")
    types.nested(layer_type).number("rope_theta")
    return whole_head_rotary(hf, head_dim, layer_type=layer_type)


def yarn_scale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's scale of cosines and sines for positions stretched by a factor."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
