"""Is the cause that is named the right one? The catalogue by variant, constants, roundings, two mistakes at once."""

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest

from attn_np import contract
from parity_tests import Trace, record
from parity_tests.bounds.error_array import nearest
from parity_tests.explain.catalogue import catalogue, reached
from parity_tests.explain.causes import explain
from parity_tests.explain.constants import STEP, Constant, fitted, norm, spread_of, written
from parity_tests.explain.findings import Finding, told, told_apart
from parity_tests.explain.roundings import balanced, likeness
from parity_tests.judge.cases import Case
from parity_tests.mistakes import MUTANTS
from parity_tests.mistakes.plant import planted
from parity_tests.ports.parity import ParityError
from parity_tests.ports.trace import candidate
from parity_tests.tests.tool.ports_by_hand import Port
from parity_tests.tests.tool.realistic import MISTAKES, judged, said, setting_of

NAMED = {mutant.name: mutant for mutant in MUTANTS}


def names(variant: str) -> set[str]:
    return {mistake.name for mistake in catalogue(variant)}


# The catalogue --------------------------------------------------------------------------------------------------------


def test_a_variant_has_the_mistakes_of_what_it_calls() -> None:
    assert ("ops/__init__.py", "rms_norm") in reached("decoder")
    assert ("ops/__init__.py", "rms_norm") not in reached("mha")
    assert "eps of the norm added to the root" in names("decoder") - names("mha")
    assert not [name for name in names("decoder") if "gates in" in name or "reset" in name or "update gate" in name]
    assert "gates in the order z r n" in names("gru")
    assert "shared heads tiled" in names("decoder") & names("gqa")


def test_a_mistake_of_one_file_is_looked_for_wherever_its_text_stands() -> None:
    merged = "heads merged without moving their axis back"
    have = {variant for variant in contract.variants() if merged in names(variant)}
    assert {"mha", "gqa", "decoder", "rotary", "alibi", "t5_bias", "gated", "sinks", "linear"} <= have
    assert not have & {"dot_product", "gru", "additive", "seq2seq"}


def test_mistakes_of_single_variants_are_in_the_catalogue() -> None:
    assert {"keys and values of the groups tiled", "one key/value head for all groups"} <= names("gqa")
    assert "offset of the bucket is query minus key" in names("t5_bias") - names("mha")


def test_several_edits_stand_in_one_copy() -> None:
    bugs = [NAMED["scale missing"], NAMED["bias of the scores dropped"]]
    with planted(bugs[0], "attn_np", *bugs[1:]) as alias:
        source = __import__(f"{alias}.attention.attend", fromlist=["attend"]).attend
    assert source.__module__ == f"{alias}.attention.attend"


# Realistic ports ------------------------------------------------------------------------------------------------------

# Some that PyTorch runs, of several kinds; `python -m parity_tests.tests.tool.realistic` makes all.
SAMPLE = (0, 2, 5, 7, 10, 24, 42, 48)


@pytest.mark.parametrize("number", SAMPLE, ids=lambda number: MISTAKES[number].name)
def test_a_realistic_mistake_is_named(number: int) -> None:
    found = said(number)
    assert found.first and found.stage_right and found.cause == "right", found


def test_there_are_sixty_realistic_mistakes() -> None:
    assert len(MISTAKES) == 60
    assert len({mistake.variant for mistake in MISTAKES}) >= 12
    kinds = {setting_of(number) for number in range(60)}
    assert {framework for framework, _, _ in kinds} == {"torch", "jax"}
    assert {dtype for _, dtype, _ in kinds} == {"float32", "float64"}


@pytest.mark.parametrize("variant", ["decoder", "mla", "t5_bias", "linear"])
def test_the_ports_themselves_are_right(variant: str) -> None:
    judged(variant, {}, ("torch", "float64", True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sigmoid_by_hand_is_right(dtype: str) -> None:
    """Near 1 its gradient has more digits than the weights that it returns."""
    judged("sigmoid_attention", {"sigmoid": lambda self, x: 1 / (1 + (-x).exp())}, ("torch", dtype, True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sigmoid_that_overflows_is_seen(dtype: str) -> None:
    """e^x / (1 + e^x) is the same, until e^x is infinite."""
    with pytest.raises(ParityError, match="times as large: `exp` of its largest score overflows"):
        judged("sigmoid_attention", {"sigmoid": lambda self, x: x.exp() / (1 + x.exp())}, ("torch", dtype, True))


# Two at once, and none ------------------------------------------------------------------------------------------------


def wrong_in(methods: dict[str, Callable[..., Any]], taps: bool, call: str) -> Finding:
    with pytest.raises(ParityError) as caught:
        judged("mha", methods, ("torch", "float64", taps), calls=(call,))
    return caught.value.finding


@pytest.mark.parametrize("taps", [True, False])
def test_two_mistakes_at_once_are_both_named(taps: bool) -> None:
    methods = {"scale": lambda self, q: 1 / sqrt(self.c.d_model), "add": lambda self, scores, bias: scores - bias}
    finding = wrong_in(methods, taps, "full")
    assert finding.after is not None
    both = [part.causes[0].name for part in (finding, finding.after)]
    assert any("width of the model" in name or "model's width" in name for name in both), both
    assert any(name.startswith("bias") for name in both), both
    assert "with this mended it differs next at" in told(finding)


def test_where_no_cause_fits_the_next_step_is_said() -> None:
    finding = wrong_in({"cap": lambda self, x: x + 0.1 * x**3}, False, "plain")
    assert not finding.causes
    assert "show q, k, v, scores, probs, context (taps=)" in finding.next_step, finding.next_step
    assert "float64" not in finding.next_step and f"next: {finding.next_step}" in told(finding)


def one_norm(self: Any, x: Any, name: str) -> Any:
    """An eps of 1e-3 in the norm of the keys alone."""
    squares = self.lib.sum(x * x, -1)[..., None] / x.shape[-1]
    return x / self.lib.sqrt(squares + (1e-3 if name == "w_k_norm" else self.eps())) * self.w[name]


def root_norm(self: Any, x: Any, name: str) -> Any:
    """The eps outside of the root, in the norm of the keys alone."""
    squares, eps = self.lib.sum(x * x, -1)[..., None] / x.shape[-1], self.eps()
    root = self.lib.sqrt(squares) + eps if name == "w_k_norm" else self.lib.sqrt(squares + eps)
    return x / root * self.w[name]


@pytest.mark.parametrize("call", ["plain", "full"])
@pytest.mark.left_out
def test_an_eps_in_one_of_two_norms_is_one_mistake_without_taps(call: str) -> None:
    with pytest.raises(ParityError) as caught:
        judged("decoder", {"norm": one_norm}, ("torch", "float64", False), calls=(call,))
    finding = caught.value.finding
    assert [x.name for x in finding.causes] == ["eps of the keys' norm 0.001 in place of 1e-06"], told(finding)
    assert finding.after is None and finding.explains_all


def other_norm(self: Any, x: Any, name: str) -> Any:
    return self.unit(x) * self.w["w_q_norm" if name == "w_k_norm" else "w_k_norm"]


def shown_transposed(self: Any, q: Any, k: Any) -> Any:
    q, k = Port.position(self, q, k)
    self.show(k_rot=k.swapaxes(1, 2))
    return q, self.tape["k_rot"].swapaxes(1, 2)


# Mistakes whose causes were told in a misleading way: what is said first, and that nothing else is.
TOLD: dict[str, tuple[str, dict[str, Callable[..., Any]], str, str]] = {
    "eps in one of two norms": (
        "decoder", {"norm": one_norm}, "k_norm", "eps of the keys' norm 0.001 in place of 1e-06",
    ),
    "positions from 1": (
        "decoder", {"turn": lambda self, x, at: Port.turn(self, x, at + 1)}, "q_rot", "rotary positions counted from 1",
    ),
    "eps outside of the root in one of two norms": (
        "decoder", {"norm": root_norm}, "k_norm", "eps of the norm added to the root, at k_norm alone",
    ),
    "not rotated": (
        "rotary", {"turn": lambda self, x, at: x}, "scores",
        "queries and keys not rotated by their positions (not at all, or along the heads)",
    ),
    "exponent of i / width": (
        "decoder", {"frequencies": lambda self, n: self.base() ** (-1.0 * np.arange(n // 2) / n)}, "q_rot",
        "rotary angles of base^(-i/d), without the 2",
    ),
    "axes in another order": (
        "decoder", {"position": shown_transposed}, "k_rot", "axes in the order b g s k where b s g k is expected",
    ),
    "norms exchanged": ("decoder", {"norm": other_norm}, "q_norm", "weights of the two norms exchanged"),
    "scores not scaled": ("mha", {"scale": lambda self, q: 1.0}, "scores", "scale missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_a_cause_is_told_once_and_nothing_else(name: str) -> None:
    variant, methods, stage, cause = TOLD[name]
    with pytest.raises(ParityError) as caught:
        judged(variant, methods, ("torch", "float64", True), calls=("plain",))
    finding = caught.value.finding
    assert (finding.first.name, [x.name for x in finding.causes]) == (stage, [cause]), told(finding)
    assert finding.after is None and finding.explains_all and finding.causes[0].fix


@pytest.mark.left_out
def test_two_mistakes_are_told_where_one_stands_at_one_stage_alone() -> None:
    methods = {"norm": root_norm, "cap": lambda self, x: 6.0 * self.lib.tanh(x / 6.0)}
    with pytest.raises(ParityError) as caught:
        judged("decoder", methods, ("torch", "float64", True), calls=("plain",))
    finding = caught.value.finding
    assert finding.after is not None and finding.after.causes[0].name == "softcap 6 in place of 5", told(finding)
    assert finding.causes[0].name.endswith("at k_norm alone") and finding.after.first.name == "probs"


@pytest.mark.parametrize("taps", [True, False])
def test_a_cause_holds_in_every_call_of_a_candidate(taps: bool) -> None:
    """Without a mask a forgotten causality looks like a forgotten mask; the calls with a mask tell them apart."""
    methods = {"near": lambda self, query, key: (key <= query) | True}
    with pytest.raises(ParityError) as caught:
        judged("rotary", methods, ("torch", "float64", taps))
    assert [cause.name for cause in caught.value.finding.causes] == ["causal ignored"]


def test_the_next_step_names_what_the_config_has() -> None:
    """Every stage that says something new: no norm without a norm, and the values, weights and context too."""
    with pytest.raises(ParityError) as caught:
        fields = {"norm": None, "rope_base": None, "sinks": False, "softcap": None}
        odd = {"add": lambda self, x, bias: x + bias + 0.1 * bias**2}
        judged("decoder", odd, ("torch", "float64", False), fields, calls=("full",))
    stages = "q_proj, k_proj, v_proj, k, v, scores, biased, probs, context"
    assert caught.value.finding.next_step == f"show {stages} (taps=), to see at which of them it begins"


def test_a_tap_that_no_output_is_made_of_has_no_gradient() -> None:
    def aside(self: Any, q: Any, k: Any) -> Any:
        q, k = Port.position(self, q, k)
        self.show(k_rot=k.clone())
        return q, k

    judged("decoder", {"position": aside}, ("torch", "float64", True), calls=("plain",))


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        (1.16, -0.8925, ("1.16", "-0.8925")),
        (-2.160001, -2.160002, ("-2.160001", "-2.160002")),
        (1.0, 1.0 + 2.0**-52, ("1", "1.0000000000000002")),
        (0.0, -0.0, ("0", "-0")),
        (2.0, 2.0, ("2", "2")),
    ],
)
def test_two_numbers_have_the_digits_that_tell_them_apart(got: float, expected: float, words: tuple[str, str]) -> None:
    assert told_apart(got, expected) == words


# Constants ------------------------------------------------------------------------------------------------------------


def constant(value: float | None, whole: bool = False) -> Constant:
    return Constant("x", "", value, lambda setup, value: setup, whole)


@pytest.mark.parametrize("true", [10500.0, 10512.0, 1e-9, 3.0, -0.25, 0.251367])
def test_a_constant_is_found_by_the_numbers(true: float) -> None:
    x = np.linspace(0.5, 2.0, 20)
    start = 1e4 if true > 1e3 else 1e-6 if abs(true) < 0.001 else 1.0

    def function(value: float) -> np.ndarray:
        return abs(value) ** x * np.sign(value)

    found = constant(start)
    assert fitted(found, lambda value: function(value) - function(true) if value else None) == true
    said = found.mistake(true).name.removeprefix(f"{found.name} ").partition(" ")[0]
    assert float(said) == float(f"{true:.6g}")


def rounded(self: Any, width: int) -> np.ndarray:
    """Frequencies with 8 bits, as a buffer in bfloat16 has them."""
    return nearest(Port.frequencies(self, width), "bfloat16")


def unbiased(self: Any, x: Any) -> Any:
    """Layer norm by `std()`, whose squares are divided by one less than their number."""
    x, n = x - self.lib.sum(x, -1)[..., None] / x.shape[-1], x.shape[-1] - 1
    return x / self.lib.sqrt(self.lib.sum(x * x, -1)[..., None] / n + self.eps())


LAYER = {"norm": "layer", "softcap": None, "sinks": False}
# Ports in float32, where another constant gives the same numbers: a base, and a scale of the scores.
ALIKE: dict[str, tuple[str, dict[str, Callable[..., Any]], dict[str, Any], str]] = {
    "rounded frequencies": (
        "rotary", {"frequencies": rounded}, {}, "frequencies of the rotary positions rounded to bfloat16",
    ),
    "unbiased variance": ("decoder", {"unit": unbiased}, LAYER, "variance of the layer norm divided by n - 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_what_a_constant_fits_too_is_told_by_its_own_name(name: str) -> None:
    variant, methods, fields, cause = ALIKE[name]
    with pytest.raises(ParityError) as caught:
        judged(variant, methods, ("torch", "float32", False), fields, calls=("plain",))
    finding = caught.value.finding
    assert [x.name for x in finding.causes] == [cause], told(finding)


def test_a_constant_that_nobody_writes_is_no_cause() -> None:
    """Frequencies with three decimals are in a head of two pairs those of another base."""
    methods = {"frequencies": lambda self, width: np.round(Port.frequencies(self, width), 3)}
    with pytest.raises(ParityError) as caught:
        judged("rotary", methods, ("torch", "float32", False), {"d_model": 8, "rope_base": 500.0}, calls=("plain",))
    finding = caught.value.finding
    assert not finding.causes and finding.next_step.startswith("rotary base 493.8"), told(finding)


def test_a_value_that_is_only_known_to_have_no_effect_is_not_said() -> None:
    """An eps of 1e-14 and of 0 give the same numbers."""
    x = np.linspace(0.1, 1.0, 9)
    spread = spread_of(1e-14, lambda value: x / (x + value) - x / (x + 1e-17))
    assert constant(1e-6).mistake(1e-14, spread).name == "x without an effect in place of 1e-06"
    assert constant(1e-6).mistake(1e-5, 1e-3).name == "x 1e-05 in place of 1e-06"


@pytest.mark.parametrize(
    ("value", "own", "spread", "expected"),
    [
        (10500.0, 1e4, 7e-5, True),
        (10019.0, 1e4, 3e-5, False),
        (10018.8, 1e4, 2e-5, False),
        (sqrt(1 / 5), 1 / 3, 2e-16, True),
        (0.57735, sqrt(1 / 5), 1e-6, True),
        (0.30936, sqrt(1 / 8), 5e-6, False),
        (1.01 * sqrt(1 / 8), sqrt(1 / 8), 2e-16, True),
        (0.935414, 1.0, 2e-6, False),
        (1e-5, 1e-6, 0.01, True),
        (-3.0, -2.0, 2e-7, True),
        (0.55605820415564, None, 3e-15, False),
        (0.0, 1.0, 0.0, True),
        (1e-14, 1e-6, np.inf, True),
    ],
)
def test_what_people_write_has_few_digits(value: float, own: float | None, spread: float, expected: bool) -> None:
    assert written(value, own, spread) == expected


def test_at_its_spread_a_constant_fits_half_as_well() -> None:
    x, noise = np.linspace(1.0, 2.0, 50), 1e-4 * np.cos(np.arange(50.0))
    best = 3.0 + float(np.sum(x * noise)) / float(np.sum(x * x))

    def residual(value: float) -> np.ndarray:
        return (value - 3.0) * x - noise

    least, there = (norm(residual(value)) for value in (best, best * (1 + spread_of(best, residual))))
    lost = 8 * np.finfo(np.float64).eps / STEP  # the slope is a difference over so small a step
    assert least and there and abs(there / least - 2) <= lost
    assert spread_of(best, lambda value: noise) == np.inf


def test_a_constant_without_effect_is_none() -> None:
    assert fitted(constant(1.0), lambda value: np.ones(5)) is None


def test_of_whole_numbers_that_fit_the_roundest_is_said() -> None:
    assert fitted(constant(4, True), lambda n: np.zeros(3) if n > 9 else np.ones(3)) == 16


# Roundings ------------------------------------------------------------------------------------------------------------


def lowered(how: Callable[[np.ndarray], np.ndarray]) -> Trace:
    """A run of mha whose weights were changed on their way to the context."""
    trace = record(candidate("numpy"), Case("mha", "cross", "plain", "float64"))
    tape = trace.outcome.tape
    return replace(trace, outcome=replace(trace.outcome, tape=tape | {"kept": how(tape["kept"])}))


def test_roundings_are_named_by_what_they_do() -> None:
    finding = explain(lowered(lambda x: nearest(x, "bfloat16")).judged())
    assert finding is not None and finding.first.name == "kept"
    assert finding.causes and finding.causes[0].name == "weights rounded to bfloat16"
    assert "as if rounded to bfloat16: no number has more digits" in finding.patterns
    assert "this is a statistical finding" in finding.causes[0].evidence


@pytest.mark.parametrize(
    "how",
    [
        lambda x: x * (1 + 2.0**-9),
        lambda x: x + 2.0**-9 * np.abs(x).max(),
        lambda x: x + 2.0**-9 * np.sin(97 * np.arange(x.size)).reshape(x.shape) * np.abs(x),
    ],
    ids=["a factor", "an offset", "noise"],
)
def test_what_is_as_small_as_a_rounding_is_none(how: Callable[[np.ndarray], np.ndarray]) -> None:
    """Wide bounds hold them all; they are not in the directions in which a type rounds."""
    finding = explain(lowered(how).judged())
    assert finding is not None and finding.first.name == "kept"
    assert not [text for text in [*finding.patterns, *(cause.name for cause in finding.causes)] if "round" in text]


def test_likeness() -> None:
    rng = np.random.default_rng(0)
    error, other = rng.normal(size=(2, 200))
    assert round(likeness(error, error), 12) == 1
    assert likeness(error, 0.5 * error + 0.5 * other) > 0.5
    assert likeness(error, other) == 0 and likeness(error, -error) == 0
    assert likeness(error, 4 * error) == 0
    assert likeness(error[:3], error[:3]) > 0.99 and likeness(error[:9], 0.8 * error[:9] + 0.6 * other[:9]) == 0
    assert balanced(error, other) and not balanced(np.abs(error), other) and not balanced(error, error)
