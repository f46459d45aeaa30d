"""Arrays whose bounds would let any number pass: judged on a shorter sequence, or named as not judged."""

from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import attn_torch
from attn_np import contract
from attn_np.contract import Config
from parity_tests import ParityError, Verdict, assert_parity, to_html, to_table
from parity_tests.bounds.error_array import ErrArray
from parity_tests.explain.causes import explain
from parity_tests.judge.candidates import numpy_layer
from parity_tests.judge.cases import Case, draw
from parity_tests.plugin import Judge
from parity_tests.ports import differences
from parity_tests.ports.parity import UntestedError
from parity_tests.ports.unjudged import Unjudged, in_every_type, says_little, vanishing
from parity_tests.tests.witness import bind_call, signature_of

SEQ2SEQ = contract.examples("seq2seq")["plain"]
ENCODER = "encoder.layers.0.w_x"
LONG = {"s": 11, "t": 13}


@pytest.fixture(autouse=True)
def without_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mistake is searched: only whether a port is refused counts."""
    monkeypatch.setattr(differences, "explain", lambda run, *_, **__: explain(run, causes=False))


def port_of(config: Config, whole: bool, dropped: str = "") -> dict[str, Any]:
    """Our layer as a function with its backward pass, in which one gradient may be dropped."""
    signature = signature_of(config, whole)

    def layer(args: Any, named: Any) -> tuple[Any, dict[str, Any]]:
        given, weights, kind = bind_call(signature, args, named)
        return numpy_layer(Case(config.variant, "", "", kind, given=config), weights), given

    def run(*args: Any, **named: Any) -> Any:
        module, given = layer(args, named)
        result = module(**given)
        return result[0] if isinstance(result, tuple) else result

    def vjp(*args: Any, dy: Any, **named: Any) -> dict[str, Any]:
        module, given = layer(args, named)
        tape: dict[str, Any] = {}
        module(**given, tape=tape)
        grads = module.vjp(tape, dy)
        found: dict[str, Any] = {**grads.inputs, **grads.params}
        if dropped:
            found[dropped] = np.zeros_like(found[dropped])
        names = [*(name for name, x in given.items() if x.dtype.kind == "f"), *config.shapes()]
        return {name: 0 if found.get(name) is None else found[name] for name in names}

    vars(run)["__signature__"] = signature
    return {"candidate": run, "variant": config.variant, "config": config, "vjp": vjp}


def names(verdict: Verdict) -> set[str]:
    return {name for part in verdict.unjudged for name in part.names}


# Judged on a shorter sequence -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_gradient_of_a_long_recurrence_is_judged_on_a_shorter_sequence(dtype: str) -> None:
    verdict = assert_parity(**port_of(SEQ2SEQ, False), dtype=dtype, strict=True)
    assert verdict.unjudged == [] and any("positions, as in the call plain" in name for name in verdict.traces)
    for dropped in ("source", ENCODER, "decoder.attention.w_q"):
        with pytest.raises(
            ParityError, match=rf"first at gradient d{dropped}(.|\n)*positions, whose bounds are narrow"
        ):
            assert_parity(**port_of(SEQ2SEQ, False, dropped), dtype=dtype)


def test_tokens_have_lengths_too() -> None:
    config = contract.examples("seq2seq")["words"]
    assert assert_parity(**port_of(config, False), dtype="float64", strict=True).unjudged == []


# Named ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long() -> Verdict:
    return assert_parity(**port_of(SEQ2SEQ, False), dtype="float64", sizes=LONG)


def test_what_no_sequence_judges_is_named(long: Verdict, tmp_path: Path) -> None:
    """Where sizes are asked for, no others are judged."""
    [part] = long.unjudged
    assert (part.dtype, part.call) == ("float64", "plain") and {"dsource", f"d{ENCODER}"} <= {*part.names}
    assert f"not judged, with bounds above their size: {', '.join(part.names)} (call plain, float64)" in str(long)
    assert long.as_dict()["unjudged"] == [{"dtype": "float64", "call": "plain", "arrays": list(part.names)}]
    table = StringIO()
    Console(file=table, width=400).print(to_table(long))
    assert "not judged" in table.getvalue() and ", ".join(part.names) in table.getvalue()
    to_html(long, tmp_path / "page.html")
    assert f"Not judged, with bounds above their size: {part}." in (tmp_path / "page.html").read_text("utf-8")


def test_what_is_named_could_be_dropped_and_nothing_else(long: Verdict) -> None:
    gradients = {row.name for row in long.rows if row.stage == "gradient"}
    assert names(long) < gradients
    for name in sorted(gradients)[::3]:
        port = port_of(SEQ2SEQ, False, name.removeprefix("d"))
        if name not in names(long):
            with pytest.raises(ParityError, match=f"first at gradient {name}"):
                assert_parity(**port, dtype="float64", sizes=LONG)
    assert_parity(**port_of(SEQ2SEQ, False, "source"), dtype="float64", sizes=LONG)


def test_strict_makes_an_error_of_it() -> None:
    with pytest.raises(UntestedError, match="agrees; not judged, with bounds above their size: d") as raised:
        assert_parity(**port_of(SEQ2SEQ, False), dtype="float64", sizes=LONG, strict=True)
    assert "a shorter sequence may judge them" in str(raised.value)
    assert raised.value.as_dict()["agree"] is False and raised.value.as_dict()["unjudged"]


def test_what_float64_judges_is_named_in_float32_alone_and_no_error() -> None:
    module = attn_torch.build("seq2seq", **SEQ2SEQ.as_dict()).eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight *= 2
    given: dict[str, Any] = {"outputs": ("y", "out1"), "calls": ("plain",), "sizes": {"s": 6, "t": 7}}
    verdict = assert_parity(module, "seq2seq", SEQ2SEQ, strict=True, **given)
    assert verdict.dtypes == ("float64", "float32") and {part.dtype for part in verdict.unjudged} == {"float32"}
    parts = [Unjudged("float32", "plain", ("a", "b")), Unjudged("float64", "plain", ("b",))]
    assert in_every_type(parts, ["float64", "float32"]) == [Unjudged("float64", "plain", ("b",))]
    assert in_every_type(parts[:1], ["float64", "float32"]) == []
    assert in_every_type(parts[:1], ["float32"]) == parts[:1]


def test_the_plugin_lists_them() -> None:
    node: Any = SimpleNamespace(user_properties=[])
    port = port_of(SEQ2SEQ, False)
    given = {"vjp": port["vjp"], "dtype": "float64", "sizes": LONG}
    verdict = Judge("cpu", False, node)(port["candidate"], "seq2seq", SEQ2SEQ, **given)
    assert node.user_properties == [("attn_parity_unjudged", f"seq2seq: {part}") for part in verdict.unjudged]


# An array that is 0 but for roundings ---------------------------------------------------------------------------------


def test_a_zero_by_cancellation_is_judged() -> None:
    """Softmax takes no notice of what is added to all keys; a gradient of their bias shows in any bound."""
    config = contract.config("mha", d_model=12, num_heads=3)
    verdict = assert_parity(**port_of(config, False), strict=True)
    assert verdict.unjudged == [] and not any(row.vacuous for row in verdict.rows)
    assert "bound above" not in str(verdict)
    port = port_of(config, False)

    def shifted(*args: Any, **given: Any) -> Any:
        grads = port["vjp"](*args, **given)
        return grads | {"b_k": grads["b_k"] + 1e-6}

    with pytest.raises(ParityError, match="first at gradient db_k"):
        assert_parity(**{**port, "vjp": shifted}, dtype="float64")


def test_what_vanishes_is_told_by_the_roundings() -> None:
    """And not by its size: all of these gradients are small."""
    config = contract.config("mha", d_model=12, num_heads=3)
    case = Case("mha", "", "plain", "float64", given=config)
    drawn = draw(case)
    drawn.params["w_o"][...] *= 1e-12
    every = {f"d{name}" for name in config.shapes()} | {"y", "dquery"}
    assert vanishing(case, drawn, every) == {"db_k"}
    drawn.params["w_o"][...] = 0  # exactly 0
    assert vanishing(case, drawn, every) == every - {"y", "db_o", "dw_o"}


def test_what_says_little() -> None:
    v = np.array([1.0, -1.0, 0.5, 0.0])
    assert not says_little(ErrArray(v, 0.0)) and not says_little(ErrArray(v, 0.4))
    assert says_little(ErrArray(v, np.abs(v) + 1e-9))  # zeros would be within
    assert says_little(ErrArray(v, np.array([0.1, 2.0, 2.0, 2.0])))  # most bounds
    assert says_little(ErrArray(v, np.array([2.0, 2.0, 2.0, 0.0]))) and says_little(ErrArray(v, np.nan))
    assert not says_little(ErrArray(v, np.array([0.1, 0.1, np.inf, 0.0])))


EXAMPLES = [(variant, name) for variant in contract.variants() for name in contract.examples(variant)]
# Not in float32 on any sequence: three layers read and three write; a grid has one size.
LOOSE_IN_FLOAT32 = {("seq2seq", "words"), ("axial", "wide")}


@pytest.mark.parametrize(("variant", "name"), EXAMPLES)
def test_every_array_is_judged(variant: str, name: str) -> None:
    """End to end, in both types; what is not in float32 is in float64, so that `strict` is no error."""
    port = port_of(contract.examples(variant)[name], True)
    assert assert_parity(**port, dtype="float64", calls=("full",)).unjudged == []
    verdict = assert_parity(**port, dtype="float32", calls=("full",))
    assert bool(verdict.unjudged) == ((variant, name) in LOOSE_IN_FLOAT32), str(verdict)
