"""Hidden places may hold anything, in every variant; what has consequences is compared."""

from typing import Any

import numpy as np
import pytest

from attn_np import contract
from parity_tests.bounds.precision import precision_of
from parity_tests.explain.verdicts import Judged, verdicts
from parity_tests.judge.candidates import run_numpy, scoped
from parity_tests.judge.cases import Case, draw
from parity_tests.judge.consequences import Consequences, consequences
from parity_tests.judge.hard_inputs import Hard
from parity_tests.ports.free import Free, alarms, free_tree, needs_zeros, soaked_ports, tapping

DECODER = Free(Hard(Case("decoder", "plain", "full", "float64"), "ordinary"), "numpy", "as drawn")


@pytest.mark.parametrize("seed", range(3))
def test_a_right_port_may_tap_what_it_likes(seed: int) -> None:
    """A few variants of each kind; `attn-parity soak --ports` judges all of them, many times."""
    names = ("hard", "longformer", "luong", "mla", "rotary", "entmax_attention")
    chosen = names[2 * seed : 2 * seed + 2]
    found = soaked_ports((chosen, ("float64", "float32", "bfloat16"), ("numpy", "torch"), seed, 1))
    assert found["alarms"] == []
    assert found["candidates"] == sum(len(contract.examples(name)) for name in chosen)


def test_without_consequences_they_would_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ports do differ from the reference, at hidden places."""
    monkeypatch.setattr(Consequences, "hidden", lambda *_: False)
    with free_tree("numpy") as tree:
        _, free, found = alarms(DECODER, {"numpy": tree}, 4)
    assert free
    assert {row.name for _, row in found} >= {"q", "k", "v"}


@pytest.fixture(scope="module")
def port() -> Any:
    """A decoder that does not zero hidden places, and everything that it computes."""
    drawn = DECODER.drawn()
    with free_tree("numpy") as tree:
        return drawn, run_numpy(DECODER.hard.case, drawn, True, tree)


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "q_rot", "k_rot", "q", "k", "v", "scores", "probs", "context"])
def test_a_mistake_beside_a_hidden_place_is_seen(port: Any, name: str) -> None:
    """At one visible entry; and the same at a hidden one is not a mistake."""
    drawn, right = port
    case = DECODER.hard.case
    hidden = consequences(case, drawn).hidden(name, right.tape[name].shape)
    hidden = np.broadcast_to(hidden, right.tape[name].shape)
    assert not hidden.all()
    assert hidden.any() or name in ("probs", "context"), "decoder hides queries and keys"
    for entries, passes in ((hidden, True), (~hidden, False)):
        if not entries.any():
            continue
        taps = tapping(right, {name})
        value = taps.tape[name].copy()
        value[tuple(np.argwhere(entries)[0])] += 0.001
        taps.tape[name] = value
        taps.cotangents.clear()
        rows, _ = verdicts(Judged("a port", case, drawn, taps, precision_of("float64"), partial=True))
        assert next((row.name for row in rows if not row.ok), None) == (None if passes else name)


def test_a_cotangent_matters_where_its_value_depends_on_something(port: Any) -> None:
    """A hidden weight is 0 whatever the inputs are, so what its gradient would be changes no gradient."""
    drawn, right = port
    allowed = right.tape["allowed"]
    matter = consequences(DECODER.hard.case, drawn)
    shape = right.tape["probs"].shape
    hidden = np.broadcast_to(matter.hidden(scoped("probs"), shape), shape)
    assert hidden[~np.broadcast_to(allowed, shape)].all()
    rows = np.broadcast_to(allowed, shape).sum(-1, keepdims=True) > 1
    assert not hidden[np.broadcast_to(allowed & rows, shape)].any()


def test_an_array_that_is_only_recorded_is_compared() -> None:
    """Nothing depends on the angles' sines of a recording alone, in any call; on globals some calls do."""
    case = Case("longformer", "split", "plain", "float64")
    drawn = Free(Hard(case, "ordinary"), "numpy", "as drawn").drawn()
    tape = run_numpy(case, drawn, True).tape
    matter = consequences(case, drawn)
    assert np.all(matter.hidden("global.q", tape["global.q"].shape)), "no position is marked global"
    assert not np.any(matter.hidden("y", tape["y"].shape))


@pytest.mark.parametrize("seed", range(3))
def test_a_choice_among_equals_is_the_ports_own(seed: int) -> None:
    """Equal positions have equal outputs whichever block is chosen, and a port that taps the affinity says which."""
    port = Free(Hard(Case("block_sparse", "both", "full", "float64", seed), "equal"), "torch", "all")
    drawn = port.drawn()
    affinity = run_numpy(port.hard.case, drawn, True).tape["affinity"]
    hidden = consequences(port.hard.case, drawn).hidden("affinity", affinity.shape)
    own = np.arange(affinity.shape[-2])[:, None] // 2 == np.arange(affinity.shape[-1])
    assert not np.any(hidden & ~own), "each block but the own one may be chosen"
    with free_tree("torch") as tree:
        assert alarms(port, {"torch": tree}, 6)[1:] == (True, [])


def test_results_of_zeros_do_not_say_that_a_layer_needs_none() -> None:
    case = Case("gated_delta", "whole", "full", "float16", 9011)
    with free_tree("numpy") as tree:
        assert needs_zeros(Free(Hard(case, "zero"), "numpy", "last keys hidden"), tree)
        assert not needs_zeros(DECODER, tree)


def test_neighbours_are_those_of_the_dataflow() -> None:
    matter = consequences(DECODER.hard.case, DECODER.drawn())
    assert matter.neighbours("scores")[0] == ["q", "k"]
    assert "scores" in matter.neighbours("q")[1]
    assert "dscores" in matter.neighbours("dq")[0]
    assert matter.neighbours("w_q") == ([], [])


def test_no_neighbour_before_an_array_is_computed_after_it() -> None:
    """Through the steps of a recurrence every array of a step depends on every other."""
    case = Case("gru", next(iter(contract.examples("gru"))), "full", "float64")
    tape = list(run_numpy(case, draw(case), True).tape)
    before, _ = consequences(case, draw(case)).neighbours("layers.0.n")
    assert before and all(tape.index(name) < tape.index("layers.0.n") for name in before)
