"""The modules of `attn_np.textbook` against the layers, by the judge, which must see mistakes in each."""

import ast
import importlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import attn_np
import attn_np.textbook
from parity_tests import ParityError, assert_parity
from parity_tests.explain.causes import explain
from parity_tests.explain.findings import Finding
from parity_tests.explain.verdicts import Judged
from parity_tests.ports import differences
from parity_tests.ports.parity import Verdict
from parity_tests.tests.inputs import Arrays

FOLDER = Path(inspect.getfile(attn_np.textbook)).parent
HEADS = {"d_model": 7, "num_heads": 3, "head_dim": 5, "value_head_dim": 2}
PLAIN = {**HEADS, "use_bias": False}
ROWS = "query", "key", "value"

# The layer that each module is, its fields, and the names of its inputs.
LAYERS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "additive": ("additive", {"query_dim": 7, "key_dim": 5, "hidden_dim": 11}, ROWS),
    "alibi": ("alibi", {**PLAIN, "num_heads": 4}, ("query",)),
    "delta": ("delta", {**HEADS, "use_norm": False}, ("query",)),
    "dot_product": ("dot_product", {}, ROWS),
    "flash": ("blockwise", {"block_size": 3}, ROWS),
    "gated_delta": ("gated_delta", HEADS, ("query",)),
    "gqa": ("gqa", {**PLAIN, "num_heads": 6, "num_kv_heads": 3}, ("query",)),
    "gru": ("gru", {"input_dim": 7, "hidden_dim": 5}, ("x",)),
    "linear": ("linear", {**PLAIN, "causal": True}, ("query",)),
    "mha": ("mha", {**PLAIN, "output_dim": 11}, ("query",)),
    "mla": (
        "mla",
        {"d_model": 7, "num_heads": 3, "kv_rank": 11, "nope_dim": 5, "rope_dim": 6, "value_head_dim": 2}
        | {"rope_layout": "half"},
        ("query",),
    ),
    "retention": ("retention", HEADS, ("query",)),
    "rotary": ("rotary", {**PLAIN, "head_dim": 6}, ("query",)),
    "self_attention": (
        "self_attention",
        {"d_model": 7, "head_dim": 5, "value_head_dim": 3, "use_bias": False},
        ("query",),
    ),
    "seq2seq": ("seq2seq", {"input_dim": 7, "hidden_dim": 5, "output_dim": 3}, ("source", "target")),
    "sparsemax": ("sparsemax", PLAIN, ("query",)),
}

# Where longer sequences would let bounds grow beyond the numbers.
SIZES = {"seq2seq": {"s": 2, "t": 2}}

# Edits of each module, the first in its forward pass and the second in its backward pass.
MISTAKES: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "additive": (("(key @ w_k)", "(-key @ w_k)"), ("(1 - hidden**2)", "(1 - hidden)")),
    "alibi": (("np.arange(1, h + 1)", "np.arange(h)"), ("dp - (p * dp)", "dp - 2 * (p * dp)")),
    "delta": (("(v[:, t] - found)", "v[:, t]"), ("        dk[:, t] -=", "        dk[:, t] +=")),
    "dot_product": (("query, key) / np.sqrt(", "query, key) / ("), ("(p * dp).sum(-1,", "(p * dp).mean(-1,")),
    "flash": (("shrink[..., None] * a", "a"), ("(dp - delta)", "dp")),
    "gated_delta": (("k[:, t], state))", "k[:, t], states[t]))"), ("None, None] * dfaded", "None, None] * dstate")),
    "gqa": (("x, w_k)\n", "x, w_k[:, ::-1])\n"), ("dcontext, p)", "dcontext, 2 * p)")),
    "gru": (("(1 - z) * n + z * h", "z * n + (1 - z) * h"), ("dn * r])", "dn])")),
    "linear": (("[..., None] + eps", "[..., None] - eps"), ("cumsum(dstates[:, ::-1], 1)", "cumsum(dstates, 1)")),
    "mha": (
        ("np.sqrt(q.shape[-1])\n    e", "np.sqrt(len(w_q))\n    e"),
        ('dx += np.einsum("bshk', 'dx -= np.einsum("bshk'),
    ),
    "mla": (
        ("[:, :, None], angles)", "[:, :, None], 0 * angles)"),
        ("still:], -angles)], -1)", "still:], angles)], -1)"),
    ),
    "retention": (("(-5 - np.arange(h))", "(-6 - np.arange(h))"), (" - normed * factor", "")),
    "rotary": (("2) / width)", "2) / len(w_q))"), ("scores, k), -angles)", "scores, k), angles)")),
    "self_attention": (("q, k) / np.sqrt(q", "q, k) / np.sqrt(x"), (" + dv @ w_v.T", "")),
    "seq2seq": (
        ("= memory[:, -1], [], []", "= memory[:, 0], [], []"),
        ('grads.pop("key") + ', '0 * grads.pop("key") + '),
    ),
    "sparsemax": (
        ("np.cumsum(ordered, -1) - 1)", "np.cumsum(ordered, -1) - 2)"),
        ("/ support.sum(", "/ p.shape[-1] * (0 * support).sum("),
    ),
}

# Where the weights of a module with groups of them stand among the layer's: the prefix of each group's names.
GROUPS: dict[str, dict[str, str]] = {
    "gru": {"": "layers.0."},
    "seq2seq": {
        "encoder": "encoder.layers.0.",
        "attention": "decoder.attention.",
        "decoder": "decoder.gru.layers.0.",
        "": "decoder.",
    },
}


def of_module(name: str, weights: Arrays) -> dict[str, Any]:
    """The weights of a layer as arguments of a module."""
    groups: dict[str, Any] = {}
    for group, prefix in GROUPS.get(name, {"": ""}).items():
        ends = {key.removeprefix(prefix): x for key, x in weights.items() if key.startswith(prefix)}
        own = {end: x for end, x in ends.items() if "." not in end}
        groups |= {group: own} if group else own
    return groups


def of_layer(name: str, grads: dict[str, Any]) -> Arrays:
    """The gradients that a module returns under the names of its layer."""
    inputs = LAYERS[name][2]
    found = {argument: grads.pop(argument if len(inputs) > 1 else "x") for argument in inputs}
    for group, prefix in GROUPS.get(name, {"": ""}).items():
        own = grads[group] if group else {key: x for key, x in grads.items() if not isinstance(x, dict)}
        found |= {f"{prefix}{key}": x for key, x in own.items()}
    return found


def taking(names: tuple[str, ...], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that the judge sees as one of these arguments; it gets them in order, and others by name."""
    signature = inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])

    def call(*args: Any, dy: Any = None, **more: Any) -> Any:
        return function(signature.bind(*args, **more).arguments, dy)

    call.__signature__ = signature
    return call


def judged(module: ModuleType, name: str) -> Verdict:
    """The judge's verdict on a module, outputs and gradients."""
    variant, fields, inputs = LAYERS[name]
    weights = () if name in ("dot_product", "flash") else ("weights",)

    def run(given: dict[str, Any]) -> Any:
        return module.forward(*(given[n] for n in inputs), **of_module(name, given.get("weights", {})))

    def backward(given: dict[str, Any], dy: Any) -> Arrays:
        return of_layer(name, module.backward(dy, run(given)[1]))

    return assert_parity(
        taking((*weights, *inputs), lambda given, _: run(given)[0]),
        variant,
        fields,
        vjp=taking((*weights, *inputs), backward),
        empty_rows=False,
        sizes=SIZES.get(name),
    )


def loaded(name: str, edit: tuple[str, str] = ("", "")) -> ModuleType:
    """A module, with a passage of its text replaced."""
    text, module = (FOLDER / f"{name}.py").read_text("utf-8"), ModuleType(name)
    assert text.count(edit[0]) == 1 or not edit[0], edit
    exec(text.replace(*edit) if edit[0] else text, module.__dict__)
    return module


def test_every_module_is_held_to_a_layer() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} - {"__init__"} == set(LAYERS) == set(MISTAKES)


@pytest.mark.parametrize("name", LAYERS)
def test_a_module_is_its_layer(name: str) -> None:
    verdict = judged(importlib.import_module(f"attn_np.textbook.{name}"), name)
    gradients = {row.name for row in verdict.rows if row.stage == "gradient"}
    assert not [row.name for row in verdict.rows if row.vacuous == row.elements]
    build: Any = attn_np.build
    variant, fields, inputs = LAYERS[name]
    assert len(gradients) == len(build(variant, **fields).params()) + len(inputs)


@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_planted_mistake_is_seen(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_causes(run: Judged, causes: bool, others: Sequence[Judged]) -> Finding | None:
        return explain(run, causes=False, others=others)  # causes are searched for long

    monkeypatch.setattr(differences, "explain", without_causes)
    with pytest.raises(ParityError) as raised:
        judged(loaded(name, MISTAKES[name][way == "backward"]), name)
    assert (raised.value.finding.first.stage == "gradient") == (way == "backward")


@pytest.mark.parametrize("name", LAYERS)
def test_a_function_fits_on_a_board(name: str) -> None:
    """Forward and backward have 25 lines at most, beside the docstring."""
    for node in ast.parse((FOLDER / f"{name}.py").read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            first = node.body[1] if ast.get_docstring(node) else node.body[0]
            assert (node.end_lineno or 0) - first.lineno + 1 <= 25, node.name


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_of_the_library_is_used(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text("utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module for module in imported if not str(module).startswith("attn_np.textbook")} == set()
