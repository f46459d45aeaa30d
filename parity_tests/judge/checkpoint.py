"""Real weights: one layer of a file in all three frameworks, against each other and against a recorded output."""

import json
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from attn_np import weights
from attn_np.contract import Config
from parity_tests.bounds.error_array import delivered, widened
from parity_tests.bounds.precision import precision_of
from parity_tests.explain.causes import explain
from parity_tests.judge.candidates import Candidate, Outcome, candidates, extras, leaves, numpy_layer
from parity_tests.judge.cases import Case, Drawn, draw
from parity_tests.judge.judging import Row, compare, judge, reference
from parity_tests.judge.runner import Result, prepare
from parity_tests.ports.trace import record

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "minilm"
# What a file of activations may call the inputs and the recorded results.
QUERY = ("query", "hidden_states", "x")
OUTPUT = ("attention_output", "output", "y")
WEIGHTS = ("attention_weights", "weights")


@dataclass
class RealLayer:
    """A layer from a file with the inputs it is judged on.

    Attributes:
        case, drawn: as the judge takes them.
        recorded: outputs that somebody else computed, by our names: "y" and "out1" for the weights.
        mask: padding of the keys, `b s`, or None.
        inputs: the file of activations; None where the inputs were drawn.
        report: of a model's folder, what was read of it and what was left out.
        results: the outputs of each candidate, as they were judged.
    """

    path: Path
    config: Config
    dtype: str
    case: Case
    drawn: Drawn
    recorded: dict[str, np.ndarray]
    mask: np.ndarray | None
    report: str = ""
    inputs: Path | None = None
    results: dict[str, Outcome] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        return self.config.variant


def load(
    file: Path,
    *,
    layout: str | None = None,
    variant: str | None = None,
    layer: int | None = None,
    part: str | None = None,
    prefix: str = "",
    num_heads: int | None = None,
    inputs: Path | None = None,
) -> RealLayer:
    """Read a layer and, where given, recorded activations; else inputs are drawn.

    Raises:
        WeightFileError: the file, its keys or its numbers cannot be right.
        ValueError: activations without an input, or options that a model's folder does not take.
    """
    fields: dict[str, Any] = {} if num_heads is None else {"num_heads": num_heads}
    found = read(file, layout=layout, variant=variant, layer=layer, part=part, prefix=prefix, **fields)
    dtype = found.dtype or "float32"
    name = file.name if layer is None else f"{file.name}:{layer}"
    case = Case(found.config.variant, name, "full" if inputs is None else "recorded", dtype, given=found.config)
    if inputs is None:
        drawn, recorded, mask = draw(case), {}, None
    else:
        given, recorded, mask = activations(inputs, found.config, dtype)
        drawn = Drawn(given, {}, 0)
    drawn = Drawn(drawn.inputs, found.values, drawn.seed)
    report = found.report() if isinstance(found, weights.Pretrained) else ""
    return RealLayer(file, found.config, dtype, case, drawn, recorded, mask, report, inputs)


def read(
    path: Path,
    *,
    layout: str | None = None,
    variant: str | None = None,
    layer: int | None = None,
    part: str | None = None,
    prefix: str = "",
    **fields: Any,
) -> weights.WeightFile:
    """One layer of a weight file, or of a model's folder, whose `config.json` says what it is.

    Raises:
        WeightFileError: the file, its keys or its numbers cannot be right.
        ValueError: a folder without the number of a layer, or with what its `config.json` says already.
    """
    if not path.is_dir():
        return weights.read(path, layout=layout, variant=variant, layer=layer, part=part, prefix=prefix, **fields)
    if layer is None:
        raise ValueError(f"expected the number of a layer of the model in {path}, got none; pass layer=")
    given = {name: value for name, value in ({"variant": variant} | fields).items() if value is not None}
    if given:
        got = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(f"expected nothing that a model's config.json says, got {got}; leave it out")
    return weights.read_pretrained(path, layer, part=part, layout=layout, prefix=prefix)


def activations(path: Path, config: Config, dtype: str) -> tuple[dict[str, Any], dict[str, Any], np.ndarray | None]:
    """Inputs and recorded outputs of a safetensors file, under our names."""
    held = weights.tensors(path)
    arguments = config.arguments()
    first = next(iter(arguments))
    known = tuple(dict.fromkeys((*arguments, *QUERY, "attention_mask", *OUTPUT, *WEIGHTS)))
    unknown = sorted(set(held) - set(known))
    if unknown:
        raise ValueError(f"{path}: expected names among {', '.join(known)}, got {', '.join(unknown)}; rename them")
    inputs = {name: held[name] for name in arguments if name in held and arguments[name].kind in ("array", "bias")}
    query = next((held[name] for name in QUERY if name in held), None)
    if first not in inputs and query is not None:
        inputs[first] = query
    if first not in inputs:
        raise ValueError(f"{path}: expected one of {', '.join(QUERY)}, got {', '.join(sorted(held))}; rename the input")
    mask = None
    if "attention_mask" in held:  # b s, 1 = a real token
        mask = held["attention_mask"] == 1
        inputs["mask"] = mask[:, None, None, :] if "h" in arguments["mask"].axes else mask[:, None, :]
    elif "mask" in held:
        inputs["mask"] = held["mask"] == 1
    recorded = {}
    for ours, theirs in (("y", OUTPUT), ("out1", WEIGHTS)):
        recorded |= dict([(ours, held[name]) for name in theirs if name in held][:1])
    return {n: x if x.dtype == bool else x.astype(dtype) for n, x in inputs.items()}, recorded, mask


def judge_layer(found: RealLayer, result: Result, frameworks: tuple[str, ...] = ("numpy", "torch", "jax")) -> None:
    """Each framework against the reference, stage by stage and end to end, and the recording against the reference."""
    prepare(frameworks)
    for candidate in candidates("cpu", frameworks):
        if candidate.mode == "eager" and candidate.framework == "jax":
            continue
        kept = Candidate(candidate.framework, candidate.mode, candidate.device, keeping(found, candidate))
        try:
            rows = list(judge(found.case, kept, found.drawn))
            result.rows += rows
            if not all(row.ok for row in rows):
                result.findings += filter(None, [explain(record(candidate, found.case, found.drawn).judged())])
        except Exception as e:  # a candidate that raises has failed; the others are judged all the same
            result.errors.append(f"{candidate.name}, {found.case.name}: {type(e).__name__}: {e}")
    want, _ = reference(found.case, found.drawn, {}, precision_of(found.dtype))
    for name, got in found.recorded.items():
        if name in want:
            verdict = compare(widened(got), want[name], found.dtype)
            result.rows.append(Row("the recording", found.case, "output", name, **verdict))


def keeping(found: RealLayer, candidate: Candidate) -> Any:
    """A candidate's run that leaves its outputs behind for the comparison of pairs."""

    def run(case: Case, drawn: Drawn, taped: bool) -> Outcome:
        outcome = candidate.run(case, drawn, taped)
        if not taped:
            found.results[candidate.name] = outcome
        return outcome

    return run


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


def add_example(result: Result, frameworks: tuple[str, ...]) -> None:
    """The layer in examples/, where the project's files are at hand; a wheel does not hold them."""
    if not (EXAMPLE / "model.safetensors").exists():
        result.skipped["the real layer"] = (
            "examples/minilm is not at hand: it is in the project's files, not in the wheel"
        )
        return
    found = load(EXAMPLE / "model.safetensors", layout="bert", inputs=EXAMPLE / "activations.safetensors")
    judge_layer(found, result, frameworks)


def draw_attention(found: RealLayer, path: Path, sequence: int = 0, head: int = 0) -> None:
    """One head's weights over the words of a sentence, as a picture; its words from sentences.json beside the inputs.

    Raises:
        ValueError: there is no such sequence or head, or the layer has no weights.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    layer = numpy_layer(found.case, found.drawn.params)
    if "return_weights" not in extras(found.variant, found.config.layer):
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
