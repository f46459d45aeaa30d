"""What a model's `config.json` states, asked field by field: what nobody asked for is refused at the end."""

import json
import math
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

from attn_np.weights._errors import ConfigMismatchError, listed

__all__ = ["CONFIG", "ROTARY", "Stated", "rotary", "stated_in", "turned"]

CONFIG = "config.json"
MAX_CONFIG = 2**22
ALLOW = "pass allow= with the names of those that leave attention as it is"

# Our fields of rotary positions that weights are the same for, whatever they are. (Which numbers are pairs is not one.)
ROTARY = (
    "rope_base",
    "rotary_dim",
    "max_positions",
    "scaling",
    "scaling_factor",
    "original_max_positions",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "truncate",
    "attention_factor",
    "short_factor",
    "long_factor",
)
# Fields of `transformers` that leave attention as it is in evaluation mode: the vocabulary, the rest of the layer,
# its experts, training, generation, outputs, and who wrote the file.
APART = frozenset({
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
    "router_jitter_noise", "decoder_sparse_step", "mlp_only_layers",
})  # fmt: skip


class Stated:
    """The fields of a `config.json`. A null counts as absent.

    Attributes:
        file: where they stand.
        name: which object of it they are; empty for the whole.
    """

    def __init__(self, file: str, values: Mapping[str, Any], name: str = "") -> None:
        self.file, self.name = file, name
        self._values = {key: value for key, value in values.items() if value is not None}
        self._null = values.keys() - self._values.keys()
        self._asked: set[str] = set()
        self._inner: dict[str, Stated] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a field, whatever it is."""
        self._asked.add(key)
        return self._values.get(key, default)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer from 0; there must be one where there is no default."""
        fits = self._needed(key, default)
        return fits if type(fits) is int and fits >= 0 else self.refuse(key, "an integer from 0")

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; there must be one where there is no default."""
        fits = self._needed(key, default)
        fine = isinstance(fits, int | float) and not isinstance(fits, bool) and abs(fits) < math.inf
        return fits if fine else self.refuse(key, "a finite number")

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false; there must be one where there is no default."""
        fits = self._needed(key, default)
        return fits if isinstance(fits, bool) else self.refuse(key, "true or false")

    def only(self, key: str, *known: Any) -> Any:
        """A field that may be absent, or one of these: with another value the model does what no layer here does."""
        value = self.get(key)
        if value is None or any(type(value) is type(one) and value == one for one in known):
            return value
        return self.refuse(key, f"one of {', '.join(map(repr, known))}, what layers here can do")

    def null(self, key: str) -> bool:
        """Whether a field is there and null, for families where that is not what it is when absent."""
        self._asked.add(key)
        return key in self._null

    def layers(self, key: str, layer: int) -> None:
        """How many layers there are, by this family's name for it: `layer` must be one of them."""
        count = self.get(key)
        if type(count) is int and layer >= count:
            expected, todo = f"more than {layer}, for layer {layer}", f"pass layer= from 0 to {count - 1}"
            raise ConfigMismatchError(self.file, self.name + key, expected, str(count), todo)

    def skip(self, *keys: str) -> None:
        """Fields that leave this family's attention as it is."""
        self._asked.update(keys)

    def skip_objects(self) -> None:
        """All objects among the fields: they speak of other layers."""
        self.skip(*(key for key, value in self._values.items() if isinstance(value, dict)))

    def inner(self, key: str) -> "Stated":
        """The fields of an object among the fields, none where it is absent."""
        if key not in self._inner:
            value = self.get(key, {})
            if not isinstance(value, dict):
                self.refuse(key, "an object")
            self._inner[key] = Stated(self.file, value, f"{self.name}{key}.")
        return self._inner[key]

    def layer_type(self, layer: int, otherwise: Callable[[int], str], *known: str) -> str:
        """What `layer_types` says of a layer, `otherwise` says where it is absent; it must be one that is known."""
        said = self.get("layer_types", [])
        if not isinstance(said, list) or (said and layer >= len(said)):
            self.refuse("layer_types", f"a list with an entry for layer {layer}")
        kind = said[layer] if said else otherwise(layer)
        return (
            kind if kind in known else self.refuse("layer_types", f"one of {', '.join(known)} for layer {layer}", kind)
        )

    def refuse(self, key: str, expected: str, *got: Any) -> NoReturn:
        """Say that a field cannot be taken.

        Raises:
            ConfigMismatchError: always.
        """
        found = repr(got[0] if got else self._values[key])[:200] if got or key in self._values else "none"
        todo = "build the layer by hand, or use the library the model was made for"
        raise ConfigMismatchError(self.file, self.name + key, expected, found, todo)

    def finish(
        self,
        allow: Collection[str] = (),
        todo: str = ALLOW,
    ) -> None:
        """Refuse fields that nobody asked for, as they might change what attention computes.

        Args:
            allow: names of fields to pass over.
            todo: what a caller can do about those that are left.

        Raises:
            ConfigMismatchError: naming them.
        """
        left = self.left() - set(allow)
        if "quantization_config" in left:
            expected, got = "weights in floating point", "quantised ones, which are not read"
            how = "get the model unquantised, or write it again so with its library"
            raise ConfigMismatchError(self.file, "quantization_config", expected, got, how)
        if left:
            got = f"{listed(sorted(left))}, which nothing here knows"
            raise ConfigMismatchError(self.file, sorted(left)[0], "fields whose meaning is known", got, todo)

    def left(self) -> set[str]:
        """Names of the fields that nobody asked for."""
        apart = set() if self.name else APART
        own = {self.name + key for key in self._values.keys() - self._asked - apart}
        return own.union(*(inner.left() for inner in self._inner.values()))

    def _needed(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        return self.refuse(key, "this field") if value is None else value


def rotary(
    stated: Stated, head_dim: int, *, kind: str | None = None, base: float = 10000.0, part: float = 1.0
) -> dict[str, Any]:
    """The fields of rotary positions, from `rope_parameters`, or `rope_theta` and `rope_scaling` of older files.

    Args:
        stated: the model's fields.
        head_dim: a head's width.
        kind: the layer's type, for models whose types have parameters of their own.
        base: where the file states none.
        part: the share of a head that turns, where the file states none.
    """
    longest = stated.integer("max_position_embeddings", 0)
    outside = {"base": stated.number("rope_theta", base), "part": stated.number("partial_rotary_factor", part)}
    own = stated.inner("rope_parameters" if "rope_parameters" in stated else "rope_scaling")
    if kind is not None and kind in own:
        own.skip_objects()
        own = own.inner(kind)
    width = int(head_dim * own.number("partial_rotary_factor", outside["part"]))
    found: dict[str, Any] = {"rope_base": own.number("rope_theta", outside["base"])}
    found |= {"rotary_dim": width} if width != head_dim else {}
    scaling = own.get("rope_type", own.get("type", "default"))
    own.skip("type")
    if scaling in ("default", "linear", "dynamic"):
        own.skip("original_max_position_embeddings")
    if scaling == "default":
        return found
    if scaling not in ("linear", "dynamic", "yarn", "llama3", "longrope"):
        own.refuse("rope_type", "one of 'default', 'linear', 'dynamic', 'yarn', 'llama3', 'longrope'", scaling)
    found["scaling"] = scaling
    if scaling == "dynamic":
        return found | {"scaling_factor": own.number("factor"), "original_max_positions": longest}
    if scaling == "linear":
        return found | {"scaling_factor": own.number("factor")}
    original = stated.integer("original_max_position_embeddings", 0)
    original = original or own.integer("original_max_position_embeddings", longest)
    own.skip("original_max_position_embeddings")
    found["original_max_positions"] = original
    if scaling == "llama3":
        names = {"scaling_factor": "factor"} | {name: name for name in ("low_freq_factor", "high_freq_factor")}
        return found | {ours: own.number(theirs) for ours, theirs in names.items()}
    factor = own.number("factor", longest / original if original else 1.0)
    found["scaling_factor"] = factor
    if "attention_factor" in own:
        found["attention_factor"] = own.number("attention_factor")
    if scaling == "longrope":
        return found | {name: tuple(own.get(name, ())) for name in ("short_factor", "long_factor")}
    numerator, denominator = own.number("mscale", 0.0), own.number("mscale_all_dim", 0.0)
    if numerator and denominator and "attention_factor" not in own:
        found["attention_factor"] = magnitude(factor, numerator) / magnitude(factor, denominator)
    found |= {name: own.number(name) for name in ("beta_fast", "beta_slow") if name in own}
    return found | ({} if own.flag("truncate", True) else {"truncate": False})


def magnitude(factor: float, by: float = 1.0) -> float:
    """By how much yarn raises what it slows down."""
    return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0


def stated_in(path: str) -> Stated:
    """The fields of a `config.json`.

    Raises:
        ConfigMismatchError: not a JSON object.
    """
    try:
        if os.path.getsize(path) > MAX_CONFIG:
            raise ValueError(f"more than {MAX_CONFIG} bytes")
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
        if not isinstance(found, dict):
            raise ValueError(type(found).__name__)
    except (ValueError, RecursionError) as error:
        raise ConfigMismatchError(path, None, "a JSON object", str(error)[:200], "correct or remove it") from None
    return Stated(path, found)


def turned(stated: Stated, head_dim: int, **more: Any) -> dict[str, Any]:
    """The fields of rotary positions of a family in which all of a head turns.

    Raises:
        ConfigMismatchError: the file says that a part of a head turns, which such a model can't do or does not read.
    """
    found = rotary(stated, head_dim, **more)
    if "rotary_dim" in found:
        stated.refuse("partial_rotary_factor", "1, as this family turns whole heads", found["rotary_dim"] / head_dim)
    return found
