"""Sixty-five mistakes more, and what must not be told: a second mistake, a value of the search, an error of its own."""

from collections.abc import Callable
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import attn_np
from attn_np import contract
from parity_tests import ParityError, assert_parity
from parity_tests.bounds.precision import precision_of
from parity_tests.explain import causes
from parity_tests.explain.causes import explain
from parity_tests.explain.constants import STANDS_FOR, effective, every_constant, with_value
from parity_tests.explain.findings import Finding, told
from parity_tests.explain.forms import other_forms
from parity_tests.explain.search import EXACT, Search
from parity_tests.explain.verdicts import Judged, Setup, exact, verdicts
from parity_tests.judge.candidates import Outcome, scoped
from parity_tests.judge.cases import Case, draw
from parity_tests.tests.tool import more_ports_by_hand as ports
from parity_tests.tests.tool.more_mistakes import FIELDS, MISTAKES, Mistake, judge, said

SMALL = {"d_model": 12, "num_heads": 3}


def wrong(variant: str, yours: dict[str, Any], config: dict[str, Any]) -> Finding:
    """What is said of our own layer with other fields, or None for a field that it does without."""
    fields = {name: x for name, x in (config | yours).items() if x is not None}

    def port(params: Any, query: Any) -> Any:
        build: Any = attn_np.build
        layer = build(variant, dtype=str(query.dtype), **fields)
        layer.set_params(params)
        return layer(query)

    with pytest.raises(ParityError) as caught:
        assert_parity(port, variant, config)
    return caught.value.finding


def parts(finding: Finding | None) -> list[Finding]:
    return [] if finding is None else [finding, *parts(finding.after)]


# The ports ------------------------------------------------------------------------------------------------------------

# Some of several kinds; `python -m parity_tests.tests.tool.more_mistakes` makes all.
SAMPLE = (
    "queries split the other way alone", "-10 added where hidden", "own position in the half of the later ones",
    "norm over the latent and the rotary key together", "state read before it is written", "states kept in bfloat16",
    "gate before the norm", "mask of the windows repeated row by row", "predicted place without its sigmoid",
    "each shard sees itself alone", "scaled by the model's width, and values without gradient",
)  # fmt: skip


def named(name: str) -> Mistake:
    """Such a mistake, in NumPy where it is one of outputs."""
    found = next(mistake for mistake in MISTAKES if mistake.name == name)
    return found if "gradient" in name else replace(found, way="numpy")


@pytest.mark.parametrize("name", SAMPLE)
def test_a_mistake_of_a_port_is_named(name: str) -> None:
    found = said(named(name))
    assert found.refused and not found.error and found.cause == "right", found.causes
    assert found.finding is not None and not found.finding.failure


def test_there_are_sixty_five_more_mistakes() -> None:
    assert len(MISTAKES) == 65 and len({mistake.variant for mistake in MISTAKES}) >= 14
    assert {mistake.way for mistake in MISTAKES} == {"torch", "numpy", "nnx", "linen", "equinox"}


@pytest.mark.parametrize("setup", [setup for setup in FIELDS if setup not in ("mha/causal", "t5_bias/decoder")])
def test_the_ports_themselves_are_right(setup: str) -> None:
    judge(Mistake("", setup, (), {}, "numpy"))


# No second mistake, no value of the search ----------------------------------------------------------------------------

GATED = SMALL | {"norm_eps": 1e-6}
LINEAR = {"rope_scaling": "linear", "rope_scaling_factor": 8.0}
LLAMA3 = LINEAR | {
    "rope_scaling": "llama3", "original_max_positions": 4, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip
T5 = SMALL | {"num_buckets": 8, "max_distance": 16, "causal": True}
# Our layer with other fields, and the first cause that is told of it.
OTHERS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "one of two eps": (
        "gated_delta", {"norm_eps": 1e-5, "qk_norm_eps": 1e-6}, GATED,
        "eps of the norm (qk_norm_eps as it is) 1e-05 in place of 1e-06",
    ),
    "no eps of the lengths": (
        "gated_delta", {"qk_norm_eps": 1e-12}, GATED, "qk_norm_eps without an effect in place of 1e-06",
    ),
    "depth": ("differential", {"depth": 1}, SMALL | {"depth": 2}, "depth 1 in place of 2"),
    "linear scaling": (
        "decoder", dict.fromkeys(LINEAR), SMALL | LINEAR, "scaling of the rotary positions left out",
    ),
    "llama3's scaling": (
        "decoder", dict.fromkeys(LLAMA3), SMALL | LLAMA3, "scaling of the rotary positions left out",
    ),
    "an encoder's buckets": ("t5_bias", {"bidirectional": True}, T5, "computed with bidirectional=True"),
    "no window": ("decoder", {"window": None}, SMALL | {"window": (3, None)}, "window of the decoder left out"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_fields_are_one_mistake(name: str) -> None:
    variant, yours, config, cause = OTHERS[name]
    finding = wrong(variant, yours, config)
    assert finding.causes and finding.causes[0].name == cause, told(finding)
    assert finding.after is None and finding.explains_all, told(finding)
    text = told(finding)
    assert "in place of none" not in text and "leave it out" not in text


def test_what_only_the_length_makes_the_same_is_told_too() -> None:
    """No window, and one that is wider by one, are the same for five positions and a window of four."""
    finding = wrong("decoder", {"window": None}, SMALL | {"window": (3, None)})
    assert "window one key too wide on the left" in [cause.name for cause in finding.causes[1:]], told(finding)


def test_a_number_that_only_chooses_between_steps_is_no_cause() -> None:
    """A bucket in thirds: some largest distance has its bounds between these positions."""
    own = {"d_model": 12, "num_heads": 3, "num_buckets": 8, "max_distance": 20}
    finding = wrong("t5_bias", {"max_distance": 8}, own)
    assert not any("largest distance" in cause.name for part in parts(finding) for cause in part.causes)
    assert "largest distance" in finding.next_step and "only chooses between steps" in finding.next_step, told(finding)


@pytest.mark.parametrize("variant", contract.variants())
def test_what_a_default_stands_for_gives_the_same_numbers(variant: str) -> None:
    """Set to the value that a message shows, a field that is None changes nothing."""
    for example, config in contract.examples(variant).items():
        case = Case(variant, example, "plain", "float64")
        setup = Setup(case, draw(case), EXACT)
        plain = exact(setup, False)
        for name in STANDS_FOR:
            value = effective(config, name) if name in config.fields() and getattr(config, name) is None else None
            made = None if value is None else with_value(name, setup, value)
            if made is None:
                continue
            found = exact(made, False)["y"]
            bound = verdicts(judged(setup), backward=False)[1].wanted["y"].b
            assert np.all(np.abs(found - plain["y"]) <= bound), (example, name, value)


@pytest.mark.parametrize("variant", contract.variants())
def test_a_number_of_which_none_is_known_is_none(variant: str) -> None:
    """No value shown as none is one that the reference computes with: the config says so by None alone."""
    for config in contract.examples(variant).values():
        names = {constant.name for constant in every_constant(config) if constant.value is None}
        kinds = {f.name: str(f.type) for f in dataclass_fields(config)}
        assert not [name for name in names if name in STANDS_FOR and name != "scale" and "float" in kinds.get(name, "")]


# Every form -----------------------------------------------------------------------------------------------------------


def judged(setup: Setup, tape: tuple[str, ...] = (), backward: bool = False) -> Judged:
    """The reference of a setup as a candidate of the case without its mistakes."""
    arrays = exact(setup, backward)
    outcome = Outcome()
    outcome.outputs["y"] = arrays["y"]
    outcome.tape |= {name: arrays[name] for name in tape}
    names = (*setup.drawn.params, *setup.drawn.inputs)
    outcome.grads |= {f"d{name}": arrays[f"d{name}"] for name in names if f"d{name}" in arrays}
    outcome.dtypes |= dict.fromkeys((*outcome.outputs, *outcome.grads), "float64")
    return Judged("it", setup.case, setup.drawn, outcome, precision_of("float64"), partial=True)


def with_forms() -> list[str]:
    every = {name: next(iter(contract.examples(name).values())) for name in contract.variants()}
    return [name for name, config in every.items() if any(True for _ in other_forms(config))]


@pytest.mark.parametrize("variant", with_forms())
def test_every_form_is_the_same_layer(variant: str) -> None:
    for example, config in contract.examples(variant).items():
        case = Case(variant, example, "plain", "float64")
        for other in other_forms(config):
            run = judged(Setup(replace(case, given=other), draw(case), EXACT))
            assert explain(replace(run, case=case), causes=False) is None, (example, other)


# Gradients ------------------------------------------------------------------------------------------------------------

GATE = contract.config("decoder", d_model=12, num_heads=3, gate=True)
STOPPED = ("gate", "scores", "k_rot")


@pytest.mark.parametrize("name", STOPPED)
def test_a_gradient_that_stops_at_one_array_is_named(name: str) -> None:
    case = Case("decoder", "yours", "plain", "float64", 0, GATE)
    setup = Setup(case, draw(case), EXACT)
    run = judged(replace(setup, stopped=name), backward=True)
    alike = [other for other in exact(setup, True) if same_gradients(run, replace(setup, stopped=other))]
    finding = explain(run)
    assert finding is not None and name in alike
    words = {f"no gradient through {other}" for other in alike} | {"gradient stopped at the keys"}
    assert finding.causes and finding.causes[0].name in words, told(finding)


def same_gradients(run: Judged, setup: Setup) -> bool:
    """Whether a stop at one array gives what a run has, as one at the next array does where nothing is between."""
    if scoped(setup.stopped) not in exact(replace(setup, stopped=""), True):
        return False
    return judged(setup, backward=True).outcome.grads.keys() == run.outcome.grads.keys() and all(
        np.array_equal(x, run.outcome.grads[name]) for name, x in judged(setup, backward=True).outcome.grads.items()
    )


@pytest.mark.parametrize("way", ["torch"])
def test_a_wrong_forward_pass_with_its_own_gradients_is_one_mistake(way: str) -> None:
    """The backward pass by hand does not follow the forward one with a mistake; the candidate's gradients are right."""
    mistake = replace(named("keys tiled, values not"), way=way, calls=("plain",))
    finding = said(mistake).finding
    assert finding is not None
    assert finding.causes and finding.after is None and finding.explains_all, told(finding)


# No error of its own --------------------------------------------------------------------------------------------------

# What a candidate may give back.
ODD: dict[str, Callable[[np.ndarray], Any]] = {
    "NaN": lambda y: y * np.nan,
    "some NaN": lambda y: np.where(y > 0, y, np.nan),
    "infinite": lambda y: np.sign(y) * np.inf,
    "0": lambda y: 0 * y,
    "huge": lambda y: y * 1e300,
    "complex": lambda y: y * 1j,
    "whole numbers": lambda y: np.rint(y).astype(int),
    "booleans": lambda y: y > 0,
    "float16": lambda y: y.astype(np.float16),
    "objects": lambda y: y.astype(object),
    "words": lambda y: y.astype(str),
    "no rows": lambda y: y[:0],
    "no columns": lambda y: y[..., :0],
    "one number": lambda y: y.sum(),
    "one position less": lambda y: y[:, 1:],
    "one axis more": lambda y: y[..., None],
    "flat": lambda y: y.ravel(),
    "axes exchanged": lambda y: y.swapaxes(0, 1),
    "lists": lambda y: y.tolist(),
}
LAYERS = {
    "mha": {"d_model": 6, "num_heads": 2, "causal": True},
    "luong": {"query_dim": 5, "key_dim": 3, "local": "p", "half_window": 3, "position_dim": 7},
    "gated_delta": {"d_model": 6, "num_heads": 2},
}


FEW = ("some NaN", "0", "complex")


@pytest.mark.parametrize(
    ("variant", "odd"), [(variant, odd) for variant in LAYERS for odd in (ODD if variant == "luong" else FEW)]
)
def test_no_candidate_ends_the_search_in_an_error(variant: str, odd: str) -> None:
    config = contract.config(variant, **LAYERS[variant])

    def port(params: Any, query: Any) -> Any:
        return ODD[odd](run(params, query))

    def of_keys(params: Any, query: Any, key: Any) -> Any:
        return ODD[odd](run(params, query, key))

    def run(params: Any, *inputs: Any) -> Any:
        build: Any = attn_np.build
        layer = build(variant, dtype="float64", **LAYERS[variant])
        layer.set_params(params)
        return layer(*inputs)

    with pytest.raises(ParityError) as caught:
        assert_parity(of_keys if variant == "luong" else port, variant, config, calls=("plain",))
    assert not any(part.failure for part in parts(caught.value.finding)), str(caught.value)


def test_a_search_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict stands, and the error is told instead of a cause."""

    def fits(self: Search) -> Any:
        raise ZeroDivisionError("of the search")

    monkeypatch.setattr(Search, "fits", fits)
    finding = wrong("mha", {"scale": 2.0}, SMALL)
    assert finding.failure == "ZeroDivisionError: of the search" and not finding.causes
    assert "cause: the search for a cause failed: ZeroDivisionError: of the search" in told(finding)


def test_a_mistake_whose_bounds_cannot_be_had_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*args: Any, **options: Any) -> Any:
        raise TypeError("the error bounds do not decide this")

    first = SimpleNamespace(shares=[(0.1, SimpleNamespace(made=lambda setup: setup))], backward=False)
    search = SimpleNamespace(
        **vars(first), first=SimpleNamespace(stage="output"), setup=None, beside=lambda mistake: []
    )
    monkeypatch.setattr(causes, "explained", cannot)
    assert causes.two_at_once(None, search) == ([], None)  # pyright: ignore[reportArgumentType]


def test_the_ports_have_what_is_replaced() -> None:
    """A mistake that replaces a method which no port calls would test nothing."""
    for mistake in MISTAKES:
        kind = ports.KINDS.get(mistake.kind or mistake.variant, ports.Port)
        assert all(hasattr(kind, method) for method in mistake.methods), mistake.name
