"""How far a library's own output and those of our layers are from the reference, in bounds."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from attn_np.contract import Config
from parity_tests.bounds.error_array import ErrArray, delivered
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.calls import Subject
from parity_tests.judge.candidates import leaves, numpy_layer
from parity_tests.judge.cases import Case
from parity_tests.judge.judging import compare
from parity_tests.peers import Arrays, Found, Peer, Way

THEIRS = "the library"
TREES = ("attn_np", "attn_jax", "attn_torch")
RESULTS = Path(__file__).with_name("results.json")


def bounded(config: Config, values: Arrays, inputs: Arrays) -> Any:
    """The output in float64, and how far anybody who computes in float64 may be from it."""
    layer = numpy_layer(Case(config.variant, "given", "plain", "float64", given=config), values)
    layer.set_params({name: ErrArray(x, 0.0) for name, x in layer.params().items()})
    lifted = {name: ErrArray(x, 0.0) if x.dtype.kind == "f" else x for name, x in inputs.items()}
    with precision(precision_of("float64")), np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        return delivered(leaves(layer(**lifted))["y"], "float64")


def ratio(got: np.ndarray, want: Any) -> float:
    """The worst error in bounds; infinite where a bound says nothing."""
    found = compare(got, want)
    return found["ratio"] if found["vacuous"] == 0 else float("inf")


def measured(peer: Peer, folder: Path) -> Iterator[tuple[Found, dict[str, float]]]:
    """Each layer that is compared, and the worst error in bounds of each that computed it from the library's file."""
    for found in peer.found(folder):
        ratios = {}
        for tree in TREES:
            subject, layer = Subject(tree, tree), found.load(import_module(tree))
            values = {key: subject.numpy(x) for key, x in layer.params().items()}
            want = bounded(layer.config, values, found.inputs)
            ratios[THEIRS] = max(ratios.get(THEIRS, 0.0), ratio(found.output, want))
            ratios[tree] = ratio(subject.outputs(layer, found.inputs)["y"], want)
        for way in found.ways:
            for theirs, ours in measured_way(found, way):
                ratios[THEIRS] = max(ratios[THEIRS], theirs)
                for tree, worst in ours.items():
                    ratios[tree] = max(ratios[tree], worst)
        yield found, ratios


def measured_way(found: Found, way: Way) -> Iterator[tuple[float, dict[str, float]]]:
    """The worst errors, in bounds, of the library and of NumPy and PyTorch in another call of a layer."""
    want = None
    for tree in ("attn_np", "attn_torch"):
        subject, layer = Subject(tree, tree), found.load(import_module(tree), **way.fields)
        if want is None:
            values = {key: subject.numpy(x) for key, x in layer.params().items()}
            want = bounded(layer.config, values, way.inputs)
        rows = np.ones(want.shape[:2], bool) if way.rows is None else way.rows
        y = in_pieces(subject, layer, way) if way.pieces else subject.outputs(layer, way.inputs)["y"]
        yield ratio(way.output[rows], want[rows]), {tree: ratio(y[rows], want[rows])}


def in_pieces(subject: Subject, layer: Any, way: Way) -> np.ndarray:
    """The output of a layer that gets the sequence piece by piece."""
    x, begin, outputs = way.inputs["query"], 0, []
    cache = layer.init_cache(len(x), max_length=x.shape[1])
    for length in way.pieces:
        y, cache = layer.step(subject.array(np.ascontiguousarray(x[:, begin : begin + length])), cache)
        outputs.append(subject.numpy(y))
        begin += length
    return np.concatenate(outputs, axis=1)
