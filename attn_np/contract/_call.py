"""The errors of calls and constructors whose arguments Python cannot bind, with what to write instead."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_args

from attn_np.contract import config as make_config
from attn_np.contract import did_you_mean
from attn_np.contract._base import Config, check_config

# What `Layer.step` alone passes.
INTERNAL = ("self", "step")
# Names that other libraries have for arguments of ours.
SAME_ARGUMENT = {
    "query": ("x", "input", "inputs", "q", "hidden_states", "inputs_q", "queries"),
    "key": ("k", "inputs_k", "keys", "context", "memory", "key_value_states", "encoder_hidden_states"),
    "value": ("v", "inputs_v", "values"),
    "positions": ("position_ids", "pos", "input_positions", "img_ids"),
    "added_positions": ("txt_ids",),
    "return_weights": ("need_weights", "output_attentions", "return_attention_scores", "return_attn", "sow_weights"),
}
PADDING_MASKS = ("key_padding_mask", "src_key_padding_mask", "padding_mask", "pad_mask")
MASKS = ("attn_mask", "attention_mask", "masks", "attn_bias", "attention_bias")
CAUSALITY = ("is_causal", "causal", "use_causal_mask")
CACHES = ("cache", "past_key_value", "past_key_values", "use_cache", "layer_past", "decode", "valid")
MODES = ("training", "train", "deterministic", "dropout_p", "dropout_rng", "enable_dropout")

# The defaults of the options of a call; those that stand here not are None.
DEFAULTS = {"return_weights": False, "implementation": "auto"}

CALL_DOC = """The outputs in the dtype of the inputs; with `return_weights` a pair with the weights, `b h t s`.

Every layer takes some of these arguments. The letters of axes: b batch, t query, s key, h head, k and v widths of keys
and values, d, i, j and o those of the inputs and of the output; docs/conventions.md has all.

Args:
    query, key, value: a missing key is the query, a missing value the key.
    mask: True = may attend; causality, window and pattern of the layer hide more. Broadcastable to `b h t s`, to
        `b t s` without heads, to `b t` in layers with a state.
    bias: added to the scores; broadcastable likewise.
    keep: False = dropped; broadcastable likewise, and drawn in training where it is not given.
    positions: in layers that rotate, integers `b t` below the field `max_positions`, `a b t` with `rope_sections` or
        `rope_axes`; or the pair (cos, sin), `t r` or `b t r`, with each angle once or, as models have it, twice. By
        default positions follow each other, in a step from the cache's length on.
    documents: in layers with a state, integers `b t`: the number of each position's document, of several that are
        packed into one sequence. Where it changes from a real position to the next, state and convolutions begin anew.
    tape: a dictionary that gets every named intermediate. With one, "auto" takes the textbook path; with "fused" it
        lacks scores and weights.
    return_weights: whether to return the weights too.
    implementation: "textbook" forms all scores, "fused" never does or is refused, "auto" takes what serves best.
    step: `Layer.step` alone passes it.

Raises:
    ValueError: a shape that does not fit, or an option that this call cannot have.
    TypeError: no array, another dtype than the layer's, or an argument that the layer does not take.
"""


def spelled_out(call: Callable[..., Any]) -> Signature:
    """The signature of a call, with options that it takes as `**options: Unpack[Options]` one by one."""
    found, parameters = signature(call), list[Parameter]()
    for parameter in found.parameters.values():
        spelled = get_args(parameter.annotation)
        if parameter.kind is Parameter.VAR_KEYWORD and spelled:
            for name, annotation in spelled[0].__annotations__.items():
                default = DEFAULTS.get(name)
                parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
        else:
            parameters.append(parameter)
    return found.replace(parameters=parameters)


def described(call: Callable[..., Any], run: Any, full: Signature) -> Any:
    """The function that users call, with the name of the layer's call, a full signature and a docstring."""
    wraps(call)(run)
    run.__signature__, run.__doc__ = full, call.__doc__ or CALL_DOC
    return run


def call_error(
    config: Config, call: Callable[..., Any], inputs: tuple[Any, ...], options: Mapping[str, Any]
) -> TypeError | None:
    """The error of a layer's call whose arguments do not fit its signature; None if they do."""
    parameters = {name: p for name, p in signature(call).parameters.items() if name not in INTERNAL}
    by_position = [name for name, p in parameters.items() if p.kind is not Parameter.KEYWORD_ONLY]
    unknown = next((name for name in options if name not in parameters and name not in INTERNAL), None)
    if unknown is not None:
        expected, fix = f"the arguments {', '.join(parameters)}", fix_of_unknown(config, unknown, tuple(parameters))
        return TypeError(f"{config.variant}: expected {expected}, got {unknown!r}; {fix}")
    if len(inputs) > len(by_position):
        expected = f"at most {len(by_position)} arguments without a name, {', '.join(by_position)}"
        fix = f"write the others as {', '.join(f'{name}=' for name in parameters if name not in by_position)}"
        return TypeError(f"{config.variant}: expected {expected}, got {len(inputs)}; {fix}")
    given = by_position[: len(inputs)]
    twice = next((name for name in given if name in options), None)
    if twice is not None:
        return TypeError(f"{config.variant}: expected {twice} once, got two; pass one of them")
    missing = [n for n in by_position[len(inputs) :] if parameters[n].default is Parameter.empty and n not in options]
    if missing:
        return TypeError(f"{config.variant}: expected {missing[0]}, got none; pass {missing[0]}=")
    return None


def fix_of_unknown(config: Config, name: str, known: tuple[str, ...]) -> str:
    """What to write instead of an argument that a layer's call does not have."""
    arguments = config.arguments()
    ours = next((our for our, theirs in SAME_ARGUMENT.items() if name in theirs and our in known), None)
    if ours is not None:
        return f"write {ours}="
    if name in CAUSALITY:
        return fix_of_causality(config)
    if name in (*PADDING_MASKS, *MASKS) and "mask" not in arguments:
        return "this layer takes no mask; give it real positions alone"
    if name in PADDING_MASKS:
        letters = arguments["mask"].axes.split()
        # A padding mask has an axis for the batch and one for the keys.
        index = ", ".join(":" if i in (0, len(letters) - 1) else "None" for i in range(len(letters)))
        return f"write mask=~{name}{'' if len(letters) == 2 else f'[{index}]'} if its True marks padding"
    if name in MASKS:
        bias = ", and added floats as bias=" if "bias" in arguments else ""
        axes = f"broadcastable to {arguments['mask'].axes}"
        return f"write mask=, boolean with True = may attend, {axes}{bias}"
    if name in CACHES:
        return "to decode with a cache, call init_cache and step"
    if name in MODES:
        return "dropout is for layers in training mode: call train() or eval()"
    if name in config.fields():
        return f"build the layer with {name}="
    return did_you_mean(name, known)


def fix_of_causality(config: Config) -> str:
    """What to write instead of an argument that asks for causality, which is a layer's own."""
    if getattr(config, "causal", None) is True:
        return "leave it out: this layer is causal"
    if "causal" in config.fields():
        return "build the layer with causal=True"
    return (
        "this layer's config alone says who may attend to whom"
        if "mask" not in config.arguments()
        else ("this layer is causal or not by itself; write mask= to hide more")
    )


def config_of(layer_type: Any, config: Any, positional: tuple[Any, ...], fields: Mapping[str, Any]) -> Any:
    """The config that a layer's constructor gets, whole or as fields by name.

    Raises:
        TypeError: both or neither, values without a name, or a config of another layer.
        ValueError: a field that cannot be right.
    """
    cls: type[Config] = layer_type.Config
    name, required = layer_type.__name__, ", ".join(f"{field}=..." for field in cls.required())
    if positional:
        got = f"{1 + len(positional)} values without a name"
        raise TypeError(f"{cls.variant}: expected a Config or fields by name, got {got}; write {name}({required})")
    if config is None:
        return make_config(cls.variant, **fields)
    check_config(layer_type, config)
    if fields:
        fix = "pass dataclasses.replace(config, ...), or the fields alone"
        raise TypeError(f"{cls.variant}: expected a Config or fields by name, got both; {fix}")
    return config


def refuse_generator(variant: str, name: str, generator: Any, seed: Any) -> None:
    """Refuse a generator beside a seed: one of them draws.

    Raises:
        TypeError: both.
    """
    if generator is not None:
        raise TypeError(f"{variant}: expected {name}= with seed=None, got seed={seed!r}; pass seed=None")
