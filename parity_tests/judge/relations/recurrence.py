"""Relations of recurrences: a sequence in pieces, layers by themselves, gates that are open and shut."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attn_np.contract import Config
from parity_tests.judge.calls import Call, Subject, field, moved
from parity_tests.judge.relations.relation import Pair, Relation, both, relation

RELATIONS: dict[str, Relation] = {}


def cut(call: Call, first: bool) -> Call:
    """The first or the second half of the positions t."""
    name = "x" if "x" in call.inputs else "target"
    n = call.inputs[name].shape[1]
    return moved(call, "t", np.arange(n // 2) if first else np.arange(n // 2, n))


@relation(RELATIONS)
def a_sequence_in_pieces(s: Subject, call: Call) -> Iterator[Pair]:
    """The returned state goes into the next call: together they give what one call gives."""
    if "state" not in call.config.arguments():
        return
    if call.has("mask"):  # a source position that no target of a piece sees is padding in that piece
        call = call.given(mask=np.repeat(call.inputs["mask"][:, :1], call.inputs["target"].shape[1], axis=1))
    whole, one = s.bounded(call), s.run(cut(call, True))
    two = s.run(cut(call, False).given(state=one["out1"]))
    yield "y", np.concatenate([one["y"], two["y"]], axis=1), whole["y"]
    yield "state", two["out1"], whole["out1"]
    if "out2" in whole:
        yield "weights", np.concatenate([one["out2"], two["out2"]], axis=1), whole["out2"]


@relation(RELATIONS)
def the_form_is_only_a_path(s: Subject, call: Call) -> Iterator[Pair]:
    """A layer that has several forms gives the same in each, whatever the chunks."""
    if field(call.config, "form") is None:
        return
    want = s.bounded(call)
    for form, size in (("auto", 2), ("auto", 64), ("parallel", 2), ("recurrent", 2), ("chunked", 3)):
        for name, x in s.bounded(call.with_fields(form=form, chunk_size=size)).items():
            yield f"{name}, {form}, chunks of {size}", x, want[name]


def is_gru(config: Config) -> bool:
    return config.variant == "gru"


def runs_one_way(config: Config) -> bool:
    return is_gru(config) and not field(config, "bidirectional")


@relation(RELATIONS)
def layers_stand_alone(s: Subject, call: Call) -> Iterator[Pair]:
    """Each layer by itself, fed with the outputs of the one below after dropout."""
    config, n = call.config, field(call.config, "num_layers", 1)
    if not runs_one_way(config) or n == 1:
        return
    whole, x = s.bounded(call), call.inputs["x"]
    for i in range(n):
        own = {
            f"layers.0.{name.split('.')[2]}": p for name, p in call.params.items() if name.startswith(f"layers.{i}.")
        }
        single = replace(config, input_dim=x.shape[-1], num_layers=1)
        state = {"state": call.inputs["state"][i : i + 1]} if call.has("state") else {}
        found = s.run(Call(single, {"x": x} | state, own))
        yield f"state of layer {i}", found["out1"], whole["out1"][i : i + 1]
        x = found["y"]
        if i < n - 1 and call.has("keep"):
            x = np.where(call.inputs["keep"][i], x / (1.0 - field(config, "dropout")), 0.0)
    yield "y", x, whole["y"]


def with_gates(call: Call, **gates: float) -> Call:
    """Input biases of gates, r, z or n, moved by a number in every layer."""
    changed = {}
    for name, p in call.params.items():
        if name.endswith(".b_x"):
            p = p.copy()
            for gate, by in gates.items():
                p["rzn".index(gate)] += by
            changed[name] = p
    return call.with_params(**changed)


@relation(RELATIONS)
def a_shut_update_gate_keeps_the_state(s: Subject, call: Call) -> Iterator[Pair]:
    """z = 1: every state is the one before."""
    if runs_one_way(call.config) and field(call.config, "use_bias") and call.has("state"):
        found, state = s.bounded(with_gates(call, z=2.0**12)), call.inputs["state"]
        yield "state", found["out1"], state
        yield "y", found["y"], np.repeat(state[-1][:, None], found["y"].shape[1], axis=1)


@relation(RELATIONS)
def open_gates_forget_the_state(s: Subject, call: Call) -> Iterator[Pair]:
    """r = 0 and z = 0: neither the state nor the recurrent product of n, nor its bias, matters."""
    if is_gru(call.config) and field(call.config, "use_bias") and call.has("state"):
        gone = with_gates(call, r=-(2.0**12), z=-(2.0**12))
        changed = {}
        for name, p in call.params.items():
            if name.endswith(".b_h"):
                changed[name] = p.copy()
                changed[name][2] += 1.0
        other = gone.given(state=-call.inputs["state"]).with_params(**changed)
        yield from both(s.run(other), s.run(gone))


@relation(RELATIONS)
def biases_of_a_gate_add_up(s: Subject, call: Call) -> Iterator[Pair]:
    """Those of r and z act by their sum alone, and with r = 1 those of n do too."""
    if is_gru(call.config) and field(call.config, "use_bias") and field(call.config, "reset_after"):
        open_ = {n: np.round(p * 2.0**20) / 2.0**20 for n, p in call.params.items() if n.endswith((".b_x", ".b_h"))}
        call = with_gates(call.with_params(**open_), r=2.0**12)
        exchanged = {n: call.params[n[:-1] + ("h" if n[-1] == "x" else "x")] for n in open_}
        yield from both(s.bounded(call.with_params(**exchanged)), s.bounded(call))


@relation(RELATIONS)
def a_still_network_halves_its_state(s: Subject, call: Call) -> Iterator[Pair]:
    """All weights 0: z = 1/2 and n = 0, exactly."""
    if runs_one_way(call.config) and call.has("state"):
        still, state = {n: 0.0 * p for n, p in call.params.items()}, call.inputs["state"]
        found = s.run(call.with_params(**still))
        t = call.inputs["x"].shape[1]
        yield "y", found["y"], np.stack([state[-1] * 0.5 ** (i + 1) for i in range(t)], axis=1)
        yield "state", found["out1"], state * 0.5**t
