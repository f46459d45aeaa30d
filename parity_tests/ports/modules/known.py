"""Submodules that are attention that we have: their variant, config and weights; and what is wrong with the other's."""

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from attn_np.weights import WeightFileError, layouts
from attn_np.weights._foreign_config import table_name_and_config
from attn_np.weights._layer_prefixes import layer_prefixes_for
from attn_np.weights._pretrained import layout_of_model_type, nondefault_fields
from attn_np.weights.layouts import Layout, Table
from attn_np.weights.layouts._base import AppliedRule, applied_rules
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts._rearrange import parse
from parity_tests.bounds.error_array import widened
from parity_tests.explain.causes import explain
from parity_tests.explain.findings import Finding
from parity_tests.judge.candidates import Outcome
from parity_tests.judge.cases import Case, Drawn
from parity_tests.ports.modules.names import Pair, common
from parity_tests.ports.modules.recordings import Arrays, Attention, Call
from parity_tests.ports.trace import Trace

# What the keys and values of attention to a source are called.
SOURCES = ("key_value_states", "encoder_hidden_states", "context", "source", "key", "memory", "inputs_k", "kv")
VALUES = ("value", "inputs_v")


def attention_of(modules: Mapping[str, Any], weights: Arrays) -> dict[str, Attention]:
    """The submodules that are layers of ours, or attention of `transformers` that we have."""
    found = {}
    for name, module in modules.items():
        if isinstance(getattr(module, "config", None), Config):
            config, at = module.config, f"{name}." if name else ""
            params = {key: widened(weights[f"{at}{key}"]) for key in config.params() if f"{at}{key}" in weights}
            axes = {key: p.axes for key, p in config.params().items()}
            keys = {key: (f"{at}{key}", f"{axes[key]} -> {axes[key]}") for key in params}
            if set(params) == set(config.params()):
                found[name] = Attention(config.variant, config.as_dict(), params, keys)
        elif type(module).__module__.startswith("transformers.models.") and type(module).__name__.endswith("Attention"):
            known = next(from_transformers(name, modules, weights), None)
            if known is not None:
                found[name] = known
    return found


def from_transformers(name: str, modules: Mapping[str, Any], weights: Arrays) -> Iterator[Attention]:
    """The layer of ours that a module of `transformers` is; nothing where there is none."""
    module = modules[name]
    kind = getattr(getattr(module, "config", None), "model_type", None)
    if kind not in layout_of_model_type():
        return
    layout, fields = layouts.get(layout_of_model_type()[kind]), module.config.to_dict()
    numbers = dict.fromkeys(
        [getattr(module, "layer_idx", None) or 0, *(int(x) for x in name.split(".") if x.isdecimal())]
    )
    for part in layout.parts():
        if part == "encoder" and getattr(module, "is_decoder", False):
            continue
        for layer in numbers:
            try:
                table_name, config = table_name_and_config(HFConfig(name, fields), layout, layer, part)
                table = layout.tables[table_name]
                rules = applied_rules(table, config)
            except (WeightFileError, ValueError):  # a model that no layer here can be
                continue
            for key_of in keys_in_memory(name, modules, layout, table, layer, part):
                params = their_params(rules, table, key_of, name, weights)
                if params is not None:
                    single = [applied for applied in rules if len(applied.params) == 1]
                    keys = {x.params[0]: (key_of(x.keys[0]), x.pattern) for x in single if key_of(x.keys[0]) in weights}
                    yield Attention(config.variant, config.as_dict(), params, keys)
                    return


def keys_in_memory(
    name: str, modules: Mapping[str, Any], layout: Layout, table: Table, layer: int, part: str
) -> Iterator[Callable[[str], str]]:
    """Ways from the keys of a layer in a file to names in memory: through the model as a whole, or in a layer alone.

    The installed library may build a model under other names than its files have, and says how they are renamed.
    """
    words = name.split(".")
    starts = [".".join(words[:n]) + "." if n else "" for n in range(len(words), -1, -1)]
    for start in starts:
        root = modules.get(start.removesuffix("."))
        if hasattr(root, "base_model_prefix"):
            renamed = renaming(root)
            for template in layout.prefixes_of(part):
                at = layer_prefixes_for("", template, template.format(layer=layer), layer)
                yield lambda key, at=at, start=start, renamed=renamed: start + renamed(at.key_in_file(table, key))
    if not any(hasattr(modules.get(start.removesuffix(".")), "base_model_prefix") for start in starts):
        for start in starts:
            yield lambda key, start=start: start + key


def renaming(model: Any) -> Callable[[str], str]:
    """How a model of `transformers` names what a key in its file holds."""
    try:
        found = import_module("transformers.conversion_mapping").get_model_conversion_mapping(model)
    except (ImportError, AttributeError):  # a version whose models are named as their files are
        found = []
    rules = [rule for rule in found if not hasattr(rule, "operations")]

    def renamed(key: str) -> str:
        for rule in rules:
            key = rule.rename_source_key(key)[0]
        return key

    return renamed


def their_params(
    rules: list[AppliedRule], table: Table, key_of: Callable[[str], str], name: str, weights: Arrays
) -> Arrays | None:
    """Our parameters from the weights in memory; None where one is not there, or none is inside of the module."""
    params: Arrays = {}
    for applied in rules:
        theirs = {}
        for key in applied.keys:
            x = weights.get(key_of(key))
            if x is None and key not in table.absent:
                return None
            theirs[key] = np.zeros(applied.key_shape()) if x is None else widened(x)
        params |= applied.to_params(theirs)
    inside = any(key_of(key).startswith(f"{name}." if name else "") for x in rules for key in x.keys)
    return params if inside else None


def judged(who: str, known: Attention, call: Call, dtype: str, masked: Call) -> tuple[bool, Finding | None]:
    """Whether a recorded call of attention could be judged, and what is wrong with it; None where it is right.

    The mask is that of `masked`: the other side may give its own in another form, or forget it.
    """
    config = contract.config(known.variant, **known.config)
    arguments = config.arguments()
    first = next(iter(arguments))
    arrays = {name: x for name, x in call.inputs.items() if x.dtype.kind == "f"}
    y = next((x for x in call.outputs.values() if x.dtype.kind == "f"), None)
    query = next(iter(arrays.values()), None)
    if query is None or y is None or query.ndim != len(arguments[first].axes.split()):
        return False, None
    inputs = {first: query.astype(dtype)}
    source = next((x for name, x in arrays.items() if name in SOURCES and x.ndim == query.ndim), None)
    if source is not None and "key" in arguments:
        inputs["key"] = source.astype(dtype)
    mask = next((x for name, x in masked.inputs.items() if "mask" in name), None)
    if mask is not None and "mask" in arguments and mask.ndim == len(arguments["mask"].axes.split()):
        inputs["mask"] = mask if mask.dtype == bool else mask == 0
    lengths = {"t": query.shape[1], "s": inputs.get("key", query).shape[1]}
    axes = arguments["mask"].axes.split() if "mask" in inputs else []
    if any(
        n not in (1, lengths.get(axis, n)) for axis, n in zip(axes, inputs["mask"].shape if axes else (), strict=True)
    ):
        return False, None  # a mask of more keys than there are, as a cache of fixed size has
    case = Case(known.variant, call.name or "attention", "recorded", dtype, given=config)
    drawn = Drawn(inputs, {name: x.astype(dtype) for name, x in known.params.items()}, 0, {"y": np.zeros(y.shape)})
    outcome = Outcome(outputs={"y": y}, dtypes={"y": dtype})
    return True, explain(Trace(case, drawn, outcome, who, partial=True).judged())


def advice(known: Attention, who: str, call: Call, found: list[Pair], dtype: str | None) -> str:
    """The call of `assert_parity` that judges a submodule of b by itself, with its gradients."""
    name, partners = call.name, {pair.a: pair for pair in found}
    weights: dict[str, tuple[str, str]] = {}
    for ours, (key, pattern) in known.keys.items():
        pair = partners.get(key)
        if pair is None:
            continue
        left, right = (side.strip() for side in pattern.split("->"))
        if pair.turned and len(parse(pattern)[0]) == 2:  # [in, out], and heads may have axes of their own
            words = [" ".join(axis) for axis in parse(pattern)[0]]
            left = " ".join(f"({word})" if " " in word else word for word in reversed(words))
        if len(pair.shape) != len(parse(f"{left} -> {right}")[0]):
            left = left.replace("(", "").replace(")", "")
        weights[ours] = (pair.b, f"{left} -> {right}")
    output = weights.get("w_o", ("", ""))[0].rpartition(".")[0]
    # A weight of another module, but for an output projection beside this one: as a later block of T5 has its bias.
    elsewhere = [
        key for ours, (key, _) in weights.items() if name and not f"{key}.".startswith((f"{name}.", f"{output}."))
    ]
    inside = not name or all(key.startswith(f"{name}.") for key, _ in weights.values())
    holder = name if inside else common([key.rpartition(".")[0] for key, _ in weights.values()] + [name])
    start = f"{holder}." if holder else ""
    weights = {ours: (key.removeprefix(start), axes) for ours, (key, axes) in weights.items()}
    config = contract.config(known.variant, **known.config)
    fields = nondefault_fields(config)
    ours, given = passed_on(call, tuple(config.arguments()))
    several = "" not in call.outputs
    where = re.sub(r"\.(\d+)", r"[\1]", f"b.{holder}".strip("."))
    body = f"module({given})"
    if output and name and not f"{output}.".startswith(f"{name}."):  # the output projection stands beside it
        inner, last = (re.sub(r"\.(\d+)", r"[\1]", f"module.{x.removeprefix(start)}") for x in (name, output))
        body = f"{last}({inner}({given}){'[0]' if several else ''})"
    module = f"{where}, {known.variant!r}, {fields}, weights={weights}"
    module += "" if dtype is None else f", dtype={dtype!r}"
    if elsewhere:
        return (
            f"{name} of b gets from outside what {elsewhere[0]} makes: wrap it in a function that gives it this, and "
            f"assert_parity(function, {module.partition(', ')[2]})"
        )
    if who.startswith("linen"):
        return (
            f"wrap {name} of b in a function of its weights, and assert_parity(function, {module.partition(', ')[2]})"
        )
    return f"assert_parity({module}, call=lambda module, {ours}: {body})"


def passed_on(call: Call, arguments: tuple[str, ...]) -> tuple[str, str]:
    """Which arguments of ours a call like a recorded one takes, and how it hands them to the module, in words.

    Keys and values that were the queries are the queries; values that were the keys are the keys.
    """
    floats = {name: x for name, x in call.inputs.items() if x.dtype.kind == "f"}
    theirs, query = next(iter(floats.items()), ("0", np.zeros(0)))
    ours = {arguments[0]: query}
    words = [arguments[0] if theirs.isdecimal() else f"{theirs}={arguments[0]}"]
    for name, x in list(floats.items())[1:]:
        own = "key" if name in SOURCES else "value" if name in VALUES else ""
        if own in arguments and x.ndim == query.ndim:
            same = next((known for known, y in ours.items() if np.array_equal(x, y)), own)
            ours.setdefault(same, x)
            words.append(f"{name}={same}")
    return ", ".join(ours), ", ".join(words)
