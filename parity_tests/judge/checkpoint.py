"""Real weights: one layer of a file in all three frameworks, against each other and against a recorded output."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attn_np import weights
from attn_np.contract import Config
from parity_tests.bounds.error_array import widened
from parity_tests.bounds.precision import precision_of
from parity_tests.explain.causes import explain
from parity_tests.judge.candidates import Candidate, Outcome, candidates
from parity_tests.judge.cases import Case, Drawn, draw
from parity_tests.judge.frameworks import prepare
from parity_tests.judge.judging import Row, compare, judge, reference
from parity_tests.judge.result import Result
from parity_tests.ports.trace import record

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "minilm"
EXAMPLE_VARIANT = "mha"
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
        note: why a recording may differ, in words.
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
    note: str = ""

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
) -> weights.LayerWeights:
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
    masks = ("attention_mask",) if "mask" in arguments else ()
    known = tuple(dict.fromkeys((*arguments, *QUERY, *masks, *OUTPUT, *WEIGHTS)))
    unknown = sorted(set(held) - set(known))
    if unknown:
        raise ValueError(f"{path}: expected names among {', '.join(known)}, got {', '.join(unknown)}; rename them")
    queries = (first, *(name for name in QUERY if name not in arguments))
    for names in (queries, ("mask", "attention_mask"), OUTPUT, WEIGHTS):
        several = [name for name in names if name in held]
        if len(several) > 1:
            raise ValueError(f"{path}: expected one of {', '.join(several)}, got {len(several)}; leave out all but one")
    inputs = {name: held[name] for name in arguments if name in held and arguments[name].kind in ("array", "bias")}
    query = next((held[name] for name in QUERY if name in held and name not in arguments), None)
    if first not in inputs and query is not None:
        inputs[first] = query
    if first not in inputs:
        raise ValueError(f"{path}: expected one of {', '.join(QUERY)}, got {', '.join(sorted(held))}; rename the input")
    for name, x in inputs.items():
        if x.size == 0:
            raise ValueError(f"{path}: expected numbers in {name}, got the shape {x.shape}; record a row at least")
        if np.isnan(widened(x)).any():
            raise ValueError(f"{path}: expected numbers in {name}, got NaN; mend the recording")
    for name in ("mask", "attention_mask"):
        if name in held and not np.isin(widened(held[name]), (0, 1)).all():
            odd = held[name][~np.isin(widened(held[name]), (0, 1))][0]
            raise ValueError(f"{path}: expected 0 and 1 in {name}, got {odd}; write 1 for keys that are seen, else 0")
    mask = None
    if "attention_mask" in held:  # b s, 1 = a real token
        mask = held["attention_mask"] == 1
        axes = len(arguments["mask"].axes.split())  # b h t s, b t s, or the b t of a layer with a state
        inputs["mask"] = mask.reshape(mask.shape[0], *(1,) * (axes - 2), *mask.shape[1:])
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
            result.rows.append(row := Row("the recording", found.case, "output", name, **verdict))
            if not row.ok and found.dtype == "float64":
                found.note = found.note or of_float32(found, name, got)


def of_float32(found: RealLayer, name: str, got: np.ndarray) -> str:
    """In words, that a recording of a layer in float64 is as near as a layer in float32 comes; "" where it is not."""
    want, _ = reference(found.case, found.drawn, {}, precision_of("float32"), backward=False)
    verdict = compare(widened(got), want[name], "float32")
    if verdict["ratio"] > 1:
        return ""
    return (
        f"the recorded {name} is within the bound of float32 (error/bound {verdict['ratio']:.3g}), not of float64: "
        "models in float64 often compute norms, angles or the softmax in float32; load and record the model in float32"
    )


def keeping(found: RealLayer, candidate: Candidate) -> Any:
    """A candidate's run that leaves its outputs behind for the comparison of pairs."""

    def run(case: Case, drawn: Drawn, taped: bool) -> Outcome:
        outcome = candidate.run(case, drawn, taped)
        if not taped:
            found.results[candidate.name] = outcome
        return outcome

    return run


def add_example(result: Result, frameworks: tuple[str, ...]) -> None:
    """The layer in examples/, where the project's files are at hand; a wheel does not hold them."""
    if not (EXAMPLE / "model.safetensors").exists():
        result.skipped["the real layer"] = (
            "examples/minilm is not at hand: it is in the project's files, not in the wheel"
        )
        return
    found = load(EXAMPLE / "model.safetensors", layout="bert", inputs=EXAMPLE / "activations.safetensors")
    judge_layer(found, result, frameworks)
