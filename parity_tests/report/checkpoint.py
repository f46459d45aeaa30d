"""How a layer from a file is shown: how far its outputs are apart, and a picture of one head."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from parity_tests.bounds.error_array import delivered, widened
from parity_tests.bounds.precision import precision_of
from parity_tests.judge.candidates import extras, leaves, numpy_layer
from parity_tests.judge.checkpoint import RealLayer
from parity_tests.judge.judging import reference


def show_pairs(console: Console, found: RealLayer) -> None:
    """How far any two are apart, and how far they may be: the sum of their bounds."""
    want, _ = reference(found.case, found.drawn, {}, precision_of(found.dtype))
    bound = delivered(want["y"], found.dtype).b
    outputs = {name: outcome.outputs["y"] for name, outcome in found.results.items()}
    if "y" in found.recorded:
        outputs["the recording"] = widened(found.recorded["y"])
    out = Table(title="largest difference between two outputs", title_justify="left")
    for name in ("one", "other"):
        out.add_column(name)
    for name in ("difference", "of the bounds together"):
        out.add_column(name, justify="right")
    for one, other in combinations(outputs, 2):
        gap = np.abs(outputs[one] - outputs[other])
        with np.errstate(divide="ignore", invalid="ignore"):  # a bound is 0 where the number can only be 0
            share = np.max(np.where(gap == 0, 0.0, gap / (2 * bound)), initial=0.0)
        out.add_row(one, other, f"{np.max(gap, initial=0.0):.2e}", f"{share:.3g}")
    console.print(out)


def draw_attention(found: RealLayer, path: Path, sequence: int = 0, head: int = 0) -> None:
    """One head's weights over the words of a sentence, as a picture; its words from sentences.json beside the inputs.

    Raises:
        ValueError: there is no such sequence or head, or the layer has no weights.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    layer = numpy_layer(found.case, found.drawn.params)
    if "return_weights" not in extras(found.variant, found.config.class_name):
        raise ValueError(f"expected a layer with attention weights for a picture, got {found.variant}; leave it out")
    probs = list(leaves(layer(**found.drawn.inputs, return_weights=True)).values())[-1]
    probs = probs[:, None] if probs.ndim == 3 else probs
    for name, index, size in (("sequence", sequence, probs.shape[0]), ("head", head, probs.shape[1])):
        if index >= size:
            raise ValueError(f"expected {name} below {size}, got {index}; count from 0")
    t, s = probs.shape[-2:]
    rows, columns, title = [str(i) for i in range(t)], [str(i) for i in range(s)], f"head {head}"
    texts = None if found.inputs is None else found.inputs.parent / "sentences.json"
    if texts is not None and texts.exists():
        entry = json.loads(texts.read_text(encoding="utf-8"))[sequence]
        if len(entry["tokens"]) == t == s:
            rows = columns = entry["tokens"]
            title = f"{title}: {entry['text']}"
    if found.mask is not None:
        s = int(found.mask[sequence].sum())
        t = s if rows is columns else t
    figure, axes = pyplot.subplots(figsize=(7.2, 6.4), layout="constrained")
    shown = probs[sequence, head, :t, :s].astype(np.float64)
    picture = axes.imshow(shown, cmap="viridis", vmin=0)
    axes.set_xticks(range(s), columns[:s], rotation=60, ha="right")
    axes.set_yticks(range(t), rows[:t])
    axes.set_xlabel("key: what is looked at")
    axes.set_ylabel("query: who looks")
    axes.set_title(title, fontsize=10)
    figure.colorbar(picture, ax=axes, label="attention weight", shrink=0.85)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
