"""Submodules that are attention that we have: their variant, config and weights; and what is wrong with the other's."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from attn_np.weights import WeightFileError, layouts
from attn_np.weights._foreign_config import table_name_and_config
from attn_np.weights._pretrained import layout_of_model_type, nondefault_fields
from attn_np.weights.layouts._base import applied_rules
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts._rearrange import parse
from parity_tests.bounds.error_array import widened
from parity_tests.explain.causes import explain
from parity_tests.explain.findings import Finding
from parity_tests.judge.candidates import Outcome
from parity_tests.judge.cases import Case, Drawn
from parity_tests.ports.modules.names import Pair
from parity_tests.ports.modules.recordings import Arrays, Attention, Call
from parity_tests.ports.trace import Trace


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
            known = next(from_transformers(name, module, weights), None)
            if known is not None:
                found[name] = known
    return found


def from_transformers(name: str, module: Any, weights: Arrays) -> Iterator[Attention]:
    """The layer of ours that a module of `transformers` is; nothing where there is none."""
    kind = getattr(getattr(module, "config", None), "model_type", None)
    if kind not in layout_of_model_type():
        return
    layout, layer = layouts.get(layout_of_model_type()[kind]), getattr(module, "layer_idx", None) or 0
    for part in layout.parts() or ("",):
        try:
            table_name, config = table_name_and_config(HFConfig(name, module.config.to_dict()), layout, layer, part)
            rules = applied_rules(layout.tables[table_name], config)
        except (WeightFileError, ValueError):  # a model that no layer here can be
            continue
        words = name.split(".")
        for n in range(len(words), -1, -1):
            at = ".".join(words[:n]) + "." if n else ""
            theirs = {key: weights.get(at + key) for applied in rules for key in applied.keys}
            if all(x is not None for x in theirs.values()):
                params: Arrays = {}
                for applied in rules:
                    params |= applied.to_params({key: widened(x) for key, x in theirs.items() if x is not None})
                keys = {
                    applied.params[0]: (at + applied.keys[0], applied.pattern)
                    for applied in rules
                    if len(applied.params) == 1
                }
                yield Attention(config.variant, config.as_dict(), params, keys)
                return


def judged(who: str, known: Attention, call: Call, dtype: str, masked: Call) -> tuple[bool, Finding | None]:
    """Whether a recorded call of attention could be judged, and what is wrong with it; None where it is right.

    The mask is that of `masked`: the other side may give its own in another form, or forget it.
    """
    config = contract.config(known.variant, **known.config)
    arguments = config.arguments()
    first = next(iter(arguments))
    arrays = [x for x in call.inputs.values() if x.dtype.kind == "f"]
    y = next((x for x in call.outputs.values() if x.dtype.kind == "f"), None)
    if not arrays or y is None or arrays[0].ndim != len(arguments[first].axes.split()):
        return False, None
    inputs = {first: arrays[0].astype(dtype)}
    mask = next((x for name, x in masked.inputs.items() if "mask" in name), None)
    if mask is not None and "mask" in arguments and mask.ndim == len(arguments["mask"].axes.split()):
        inputs["mask"] = mask if mask.dtype == bool else mask == 0
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
        weights[ours] = (pair.b.removeprefix(f"{name}."), f"{left} -> {right}")
    config = contract.config(known.variant, **known.config)
    fields, first = nondefault_fields(config), next(iter(config.arguments()))
    given = next((key for key, x in call.inputs.items() if x.dtype.kind == "f"), "0")
    given = first if given.isdecimal() else f"{given}={first}"
    where = re.sub(r"\.(\d+)", r"[\1]", f"b.{name}".strip("."))
    module = f"{where}, {known.variant!r}, {fields}, weights={weights}"
    module += "" if dtype is None else f", dtype={dtype!r}"
    if who.startswith("linen"):
        return (
            f"wrap {name} of b in a function of its weights, and assert_parity(function, {module.partition(', ')[2]})"
        )
    return f"assert_parity({module}, call=lambda module, {first}: module({given}))"
