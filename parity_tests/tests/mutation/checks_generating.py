"""What an encoder and decoder must do when they run freely, on what they said themselves."""

from functools import cache, partial
from typing import Any

import numpy as np

from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.judging import compare
from parity_tests.tests.mutation.calls import Labelled, claim, drawn_for, made, refuses, same


def decodings(config: Any, dtype: str) -> dict[str, dict[str, Any]]:
    """Calls of `generate` or `greedy`: without and with a state to begin with and a mask that shows padding."""
    rng, b, s, kind = np.random.default_rng(9), 3, 5, DTYPES[dtype]
    if config.vocab_size is None:
        fixed: dict[str, Any] = {"source": rng.normal(size=(b, s, config.input_dim)).astype(kind)}
        fixed |= {"target": rng.normal(size=(b, 1, config.input_dim)).astype(kind), "steps": 4}
    else:
        fixed = {"source": rng.integers(0, config.vocab_size, size=(b, s)), "target": np.array([[1], [2], [0]])}
        fixed |= {"steps": 6, "stop": 0}
    mask = np.ones((b, 1, s), bool)
    mask[0, :, 3:] = mask[1, :, 1] = False
    state = rng.normal(size=(config.num_layers, b, config.hidden_dim)).astype(kind)
    return {
        "plain": fixed,
        "masked": fixed | {"mask": mask},
        "with a state": fixed | {"mask": mask[:1], "state": state},
        "one mask for all": fixed | {"mask": mask[0, 0]},
        "no steps": fixed | {"steps": 0, "mask": mask},
    }


def generating(layer: Labelled, dtype: str, what: str, alias: str) -> None:
    """Running freely, every vector and the last state are within their bounds, in the dtype of the target."""
    module = made(alias, layer, "plain", dtype)[0]
    found = module.generate(**decodings(layer[1], dtype)[what])
    for x, want in zip(found, generated(layer, dtype, what), strict=True):
        claim(x.dtype.name == dtype, f"dtype {x.dtype.name}")
        verdict = compare(x.astype(np.float64), want, dtype)
        claim(verdict["ratio"] <= 1, f"error/bound {verdict['ratio']:.3g} {verdict.get('note', '')}")


@cache
def generated(layer: Labelled, dtype: str, what: str) -> tuple[Any, ...]:
    """What the whole reference generates, each number with its bound."""
    module = made("attn_np", layer, "plain")[0]
    params = drawn_for(layer, "plain", dtype).params
    module.set_params({name: ErrArray(x.astype(np.float64), 0.0) for name, x in params.items()})
    arguments = decodings(layer[1], dtype)[what]
    floats = {n: x for n, x in arguments.items() if n in ("source", "target", "state")}
    carried = {n: ErrArray(x.astype(np.float64), 0.0) for n, x in floats.items()}
    with precision(precision_of(dtype)):
        return module.generate(**arguments | carried)


def speaking(layer: Labelled, what: str, alias: str) -> None:
    """The likeliest tokens are those that calls of the layer find step by step; counted up to the first stop.

    With one token for the stop and then another, some rows stop at once, some in between, some never.
    """
    given, config = decodings(layer[1], "float64")[what], layer[1]
    module, count = made(alias, layer, "plain")[0], config.vocab_size  # type: ignore[attr-defined]
    # Without a bias and with weights this large one token leads to another.
    module.set_params({name: 0 * x if name == "decoder.b_o" else 4 * x for name, x in module.params().items()})
    for stop in range(0, count, 3):
        arguments = given | {"stop": stop, "target": (given["target"] + stop) % count}
        tokens, counts = module.greedy(**arguments)
        want = stepwise(module, arguments)
        claim(same(tokens, want), f"{tokens}, step by step {want}")
        stops = [row.index(stop) if stop in row else arguments["steps"] for row in want.tolist()]
        claim(same(counts, np.array(stops)), f"counted {counts}, not {stops}")


def stepwise(module: Any, arguments: dict[str, Any]) -> np.ndarray:
    """Greedy decoding by calls of the layer itself, one target at a time."""
    rest = {n: arguments[n] for n in ("source", "mask") if n in arguments}
    token, state = arguments["target"], arguments.get("state")
    done, found = np.zeros(len(token), bool), []
    for _ in range(arguments["steps"]):
        y, state = module(**rest, target=token, state=state)
        best = np.where(done, arguments["stop"], y[:, 0].argmax(axis=-1))
        done = done | (best == arguments["stop"])
        token = best[:, None]
        found.append(best)
    return np.stack(found, axis=1) if found else np.zeros((len(done), 0), np.int64)


def wrong_decodings(layer: Labelled, alias: str) -> None:
    """What cannot be decoded is refused: wrong numbers of steps, longer targets, the other way to decode."""
    config: Any = layer[1]
    ways = ("generate", "greedy") if config.vocab_size is None else ("greedy", "generate")
    module, arguments = made(alias, layer, "plain")[0], decodings(config, "float64")["plain"]
    own, other = (getattr(module, name) for name in ways)
    for steps in (-1, 1.0, True):
        refuses(partial(own, **arguments | {"steps": steps}), ValueError, "steps to be an integer from 0")
    two = np.concatenate([arguments["target"]] * 2, axis=1)
    refuses(partial(own, **arguments | {"target": two}), ValueError, "one first input (t=1), got t=2")
    refuses(partial(own, **arguments | {"source": two.tolist()}), TypeError, "expected source as a NumPy array")
    refuses(
        partial(own, **arguments | {"state": two[0]}), ValueError if config.vocab_size is None else TypeError, "state"
    )
    refuses(partial(own, **arguments | {"mask": np.ones((3, 1, 5), int)}), TypeError, "expected a boolean mask")
    arguments = {n: x for n, x in arguments.items() if n != "stop"} | ({"stop": 0} if ways[1] == "greedy" else {})
    refuses(partial(other, **arguments), ValueError, f"{config.variant}: expected ")
