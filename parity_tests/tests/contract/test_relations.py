"""The relations hold in every tree for calls that Hypothesis draws, and each of them sees a planted bug."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attn_np import contract
from attn_np.contract import Config
from parity_tests.judge.calls import Call, Subject
from parity_tests.judge.cases import TRUE, tokens_below
from parity_tests.judge.relations import RELATIONS, broken, compared, ratios
from parity_tests.mistakes import MUTANTS
from parity_tests.mistakes.plant import SHARED, Mutant
from parity_tests.tests.inputs import shapes_for, without
from parity_tests.tests.mutation.common_mode import call_of, reference_with

QUIET = {"derandomize": True, "deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}

# What a config may have besides what its example says.
CHOICES: dict[str, list[Any]] = {
    "causal": [False, True],
    "window": [None, (0, 0), (1, 2), (None, 1), (2, None)],
    "softcap": [None, 0.75, 3.0],
    "scale": [None, 0.3, 1.0],
    "dropout": [0.0, 0.25, 0.5],
    "use_bias": [True, False],
}


@st.composite
def calls(draw: Any, variant: str) -> Call:
    """A config, sizes, and which arguments are given; the numbers come from a seed."""
    config = draw(st.sampled_from(list(contract.examples(variant).values())))
    changed = {name: draw(st.sampled_from(values)) for name, values in CHOICES.items() if name in config.fields()}
    for name, value in changed.items():
        with suppress(ValueError):  # the example's own fields may not go with this one
            config = without(config, **{name: value})
    sizes = {letter: draw(st.integers(1, most)) for letter, most in (("b", 3), ("t", 5), ("s", 6))}
    arguments = config.arguments()
    names = {name for name, arg in arguments.items() if not arg.optional or draw(st.booleans())}
    return made(config, sizes, names, draw(st.integers(0, 2**16)))


def made(config: Config, sizes: dict[str, int], names: set[str], seed: int) -> Call:
    """Random numbers for a call."""
    rng, inputs = np.random.default_rng(seed), {}
    for name, shape in shapes_for(config, "full", **sizes).items():
        kind = config.arguments()[name].kind
        if kind in ("array", "bias"):
            inputs[name] = rng.normal(size=shape)
        elif kind == "integers":
            inputs[name] = rng.integers(0, tokens_below(config, name), size=shape)
        else:
            inputs[name] = rng.random(shape) < TRUE[kind]
    fans = config.fans()
    params = {n: rng.normal(size=shape) * 1.5 * fans[n] ** -0.5 for n, shape in config.shapes().items()}
    return Call(config, {name: x for name, x in inputs.items() if name in names}, params)


@pytest.mark.parametrize("variant", contract.variants())
@pytest.mark.parametrize(("tree", "examples"), [("attn_np", 6), ("attn_torch", 2)])
def test_relations_hold(tree: str, examples: int, variant: str) -> None:
    @settings(max_examples=examples, **QUIET)
    @given(calls(variant))
    def check(call: Call) -> None:
        assert list(broken(Subject(tree, tree), call)) == []

    check()


@pytest.mark.parametrize("variant", contract.variants())
def test_what_a_contract_is_exempt_from_does_not_hold(variant: str) -> None:
    """Each relation that a contract says is not kept is broken by a call of an example that says so."""
    subject, kept = Subject("attn_np", "attn_np"), {}
    for config in contract.examples(variant).values():
        # Positions that are given move with their keys, and then keys have no order.
        call = made(config, {"b": 2, "t": 4, "s": 5}, set(config.arguments()) - {"positions"}, 0)
        for name, why in config.broken_relations().items():
            assert why.strip(), name
            found = compared(name, subject, call)
            kept[name] = kept.get(name, True) and all(r <= 1 for r in found.values())
    assert not [name for name, holds in kept.items() if holds]


def test_an_exemption_without_need_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    config = contract.get("rotary").Config
    monkeypatch.setattr(config, "broken_relations", lambda self: {"weights_add_up_to_one": "it would be less work"})
    with pytest.raises(AssertionError, match="weights_add_up_to_one"):
        test_what_a_contract_is_exempt_from_does_not_hold("rotary")


# In JAX, which compiles, each relation is asked of one variant that it applies to.
ASKED = {
    "heads_stand_alone": "mha/split",
    "outputs_stay_among_the_values": "luong/general",
    "a_window_is_a_mask": "fused_qkv/causal",
    "a_sequence_in_pieces": "gru/single",
    "the_form_is_only_a_path": "linear/chunked",
    "layers_stand_alone": "gru/plain",
    "a_shut_update_gate_keeps_the_state": "gru/single",
    "open_gates_forget_the_state": "gru/single",
    "biases_of_a_gate_add_up": "gru/single",
    "a_still_network_halves_its_state": "gru/single",
    "the_decoder_begins_where_the_encoder_ended": "seq2seq/free",
    "generation_feeds_its_outputs_back": "seq2seq/free",
    "decoding_takes_the_likeliest_until_the_stop": "seq2seq/words",
    "the_output_bias_shifts_the_output": "self_attention/output",
}


@pytest.mark.parametrize("name", RELATIONS)
def test_relations_hold_in_jax(name: str) -> None:
    variant, example = ASKED.get(name, "dot_product/scaled").split("/")
    config = contract.examples(variant)[example]
    call = made(config, {"b": 2, "t": 3, "s": 4}, set(config.arguments()), 0)
    found = ratios(name, Subject("attn_jax", "attn_jax"), call)
    assert found, "the relation does not apply to this variant"
    assert all(r <= 1 for r in found.values()), found


# A bug that each relation sees by itself ------------------------------------------------------------------------------

SEES = {
    "keys_have_no_order": "padding mask on the rows of the queries",
    "queries_have_no_order": "heads merged without moving their axis back",
    "batch_rows_stand_alone": "softmax over the batch",
    "the_last_queries_stand_alone": "causal aligned at the first key",
    "heads_stand_alone": "mask of the first head used for all heads",
    "weights_add_up_to_one": "hidden scores filled with -1e9",
    "a_query_without_keys_gives_nothing": "hidden scores filled with -1e9",
    "a_constant_on_all_scores_changes_nothing": "softcap after the bias",
    "a_large_bias_decides": "bias subtracted",
    "every_key_twice_changes_nothing": "scale from the number of keys",
    "twice_the_scores_square_the_weights": "scale after the softmax",
    "indifferent_scores_share_evenly": "features summed without the score's weights",
    "loud_scores_stay_finite": "softmax without subtracting the maximum",
    "outputs_stay_among_the_values": "mask ignored by the additive score",
    "the_output_is_linear_in_the_values": "keys projected from the values",
    "the_output_is_the_weights_times_the_values": "values projected from the keys",
    "weights_do_not_know_dropout": "weights returned after dropout",
    "evaluation_drops_nothing": "dropout in evaluation",
    "keeping_everything_is_no_dropout": "dropout mask inverted",
    "the_output_bias_shifts_the_output": "bias of the output dropped",
    "hidden_keys_may_as_well_not_be_there": "mask ignored",
    "what_is_hidden_has_no_influence": "hidden keys not selected away",
    "a_window_is_a_mask": "causal off by one",
    "a_wide_window_hides_nothing": "window as wide on the right as on the left",
    "the_default_scale_is_that_of_the_head": "scale from the width of the model",
    "the_scale_belongs_to_the_queries": "configured scale ignored",
    "a_huge_softcap_caps_nothing": "softcap without its rescale",
    "sixteen_bits_are_computed_in_float32": "16-bit inputs not widened",
    "the_last_bits_are_felt": "softmax in float32 for float64 inputs",
    "a_sequence_in_pieces": "initial state ignored",
    "the_form_is_only_a_path": "a chunk begins with its own state",
    "layers_stand_alone": "dropout between layers left out",
    "a_shut_update_gate_keeps_the_state": "update gate the other way round",
    "open_gates_forget_the_state": "recurrent bias of n not reset",
    "biases_of_a_gate_add_up": "recurrent bias of n missing",
    "a_still_network_halves_its_state": "initial state ignored",
    "the_decoder_begins_where_the_encoder_ended": "encoder's last state not handed on",
    "generation_feeds_its_outputs_back": "targets one step late",
    "decoding_takes_the_likeliest_until_the_stop": "stop token counted in the length",
}


# Bugs that no call of the judge shows: it gives masks all their axes.
UNSEEN = {
    "the_last_axis_alone_serves_all": Mutant(
        name="keys of a mask of one axis hidden one place early",
        file=SHARED,
        old="visible = hide_neg_inf(allowed, bias)\n    if softmax_fn",
        new="allowed = stack([*allowed[1:], allowed[0]]) if allowed is not None and allowed.ndim == 1 else allowed\n"
        "    visible = hide_neg_inf(allowed, bias)\n    if softmax_fn",
        variant="mha",
        example="split",
    )
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", RELATIONS)
def test_each_relation_sees_a_planted_bug(name: str) -> None:
    named = (mutant for mutant in MUTANTS if mutant.name == SEES.get(name))
    mutant = UNSEEN.get(name) or next(x for x in named if name not in x.case.config.broken_relations())
    with reference_with(mutant) as subject:
        assert any(not r <= 1 for r in ratios(name, subject, call_of(mutant)).values())
