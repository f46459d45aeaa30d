"""Traces: everything a run was given and computed, in one safetensors file that goes to another machine.

Names in the file say what an array is: `inputs.query`, `params.w_q`, `pulled.y` (the gradient that y got), `outputs.y`,
`tape.scores`, `cotangents.dscores`, `grads.dw_q`. The metadata hold the variant, its config, the order of the tape, who
computed it and with which versions. An array is stored in the smallest float type that holds it exactly.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from json import JSONDecodeError
from os import PathLike, fspath
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.ops import DTYPES
from attn_np.weights import tensors
from attn_np.weights._safetensors import TensorFile, write_tensors
from parity_tests.bounds.error_array import widened
from parity_tests.bounds.precision import precision_of
from parity_tests.explain.verdicts import Judged, verdicts
from parity_tests.judge.candidates import (
    Candidate,
    Outcome,
    accelerators,
    output_shapes,
    pulled,
    run_jax,
    run_numpy,
    run_torch,
)
from parity_tests.judge.cases import Case, Drawn, draw
from parity_tests.judge.frameworks import versions
from parity_tests.judge.judging import Anchor, Row

FORMAT = "attn-trace/1"
KINDS = ("inputs", "params", "pulled", "outputs", "tape", "cotangents", "grads")


@dataclass
class Trace:
    """One run of one candidate.

    Attributes:
        case, drawn: the call.
        outcome: what came out.
        who: name of the candidate, such as "torch eager".
        fused: compiled, so that values may be handed on before their last rounding.
        partial: it records what it likes.
        about: versions and device, by name.
    """

    case: Case
    drawn: Drawn
    outcome: Outcome
    who: str
    fused: bool = False
    partial: bool = False
    about: dict[str, str] = field(default_factory=dict)
    _verdicts: "tuple[list[Row], Anchor] | None" = field(default=None, init=False, repr=False, compare=False)

    def verdicts(self) -> tuple[list[Row], Anchor]:
        """The verdict on every array, and the reference's arrays with their bounds; found once."""
        if self._verdicts is None:
            backward = not self.partial or bool(self.outcome.grads or self.outcome.cotangents)
            self._verdicts = verdicts(self.judged(), backward=backward)
        return self._verdicts

    def judged(self) -> Judged:
        """The run as the judge takes it."""
        p = precision_of(self.case.dtype)
        return Judged(self.who, self.case, self.drawn, self.outcome, p, self.fused, self.partial)

    def parts(self) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
        yield from zip(KINDS[:3], (self.drawn.inputs, self.drawn.params, self.drawn.pulled), strict=True)
        for kind in KINDS[3:]:
            yield kind, getattr(self.outcome, kind)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the trace, whole or not at all."""
        kinds = self.parts()
        values = {f"{kind}.{name}": narrowest(x, self.case.dtype) for kind, part in kinds for name, x in part.items()}
        config = self.case.config
        about = {
            "format": FORMAT,
            "variant": config.variant,
            "config": json.dumps(config.as_dict(), sort_keys=True),
            "dtype": self.case.dtype,
            "call": json.dumps([self.case.example, self.case.call, self.case.seed]),
            "who": self.who,
            "how": json.dumps({"fused": self.fused, "partial": self.partial}),
            "order": json.dumps({kind: list(part) for kind, part in self.parts()}),
            "dtypes": json.dumps(self.outcome.dtypes),
            "about": json.dumps(self.about, sort_keys=True),
        }
        write_tensors(path, values, about)


def narrowest(x: np.ndarray, dtype: str) -> np.ndarray:
    """The same numbers in the smallest of the trace's dtype, float32 and float64 that holds them all."""
    if x.dtype == bool or x.dtype.kind in "iu":
        return x
    wide = widened(x)
    with np.errstate(over="ignore", invalid="ignore"):
        for name in (dtype, "float32"):
            small = wide.astype(DTYPES[name])
            if np.array_equal(widened(small), wide, equal_nan=True):
                return small
    return wide


def record(candidate: Candidate, case: Case, drawn: Drawn | None = None, *, partial: bool = False) -> Trace:
    """Run a candidate with a tape and keep everything."""
    drawn = drawn or draw(case)
    outcome = candidate.run(case, drawn, True)
    held = pulled(case, drawn, output_shapes(case, drawn))
    drawn = Drawn(drawn.inputs, drawn.params, drawn.seed, held)
    about = versions() | {"device": candidate.device}
    return Trace(case, drawn, outcome, candidate.name, candidate.mode == "jit", partial, about)


def load(
    path: str | PathLike[str], *, like: "Trace | None" = None, names: Mapping[str, str | None] | None = None
) -> Trace:
    """Read a trace; or a file of arrays that somebody else wrote, named by `names` and described by another trace.

    Args:
        path: the file.
        like: the trace that a foreign file is to be compared with: it gives the variant, the config, what is not in
            the file.
        names: name in the file to ours, such as {"attn_softmax": "tape.probs"}; to None for what is left out.

    Raises:
        WeightFileError: the file is no safetensors file.
        ValueError: it is no whole trace, or nothing says what its arrays are.
    """
    with TensorFile(path) as file:
        about = dict(file.metadata)
    held, said = tensors(path), about.get("format", "")
    if said != FORMAT and said.startswith(FORMAT.partition("/")[0]):
        raise ValueError(f"{fspath(path)}: expected a trace of the format {FORMAT}, got {said}; record it anew")
    if said.startswith("attn-") and said != FORMAT:
        raise ValueError(
            f"{fspath(path)}: expected a trace, got a file of the format {said}; record a trace of weights with "
            f"attn-parity trace --weights, compare recordings of modules with attn-parity modules"
        )
    if said != FORMAT:
        return foreign(fspath(path), held, like, names or {})
    try:
        return read(held, about)
    except (KeyError, TypeError, AttributeError, JSONDecodeError) as error:
        raise ValueError(
            f"{fspath(path)}: expected a whole trace, got one with {error} absent or spoilt; record it anew"
        ) from None


def read(held: Mapping[str, np.ndarray], about: Mapping[str, str]) -> Trace:
    """A trace of a file's arrays and metadata."""
    if about["dtype"] not in DTYPES:
        raise KeyError(about["dtype"])
    config = contract.config(about["variant"], **json.loads(about["config"]))
    example, call, seed = json.loads(about["call"])
    order = json.loads(about["order"])
    parts = {kind: {name: held[f"{kind}.{name}"] for name in order[kind]} for kind in KINDS}
    case = Case(config.variant, example, call, about["dtype"], seed, config)
    drawn = Drawn(parts["inputs"], parts["params"], 0, parts["pulled"])
    wide: dict[str, Any] = {kind: {name: widened(x) for name, x in parts[kind].items()} for kind in KINDS[3:]}
    dtypes = json.loads(about["dtypes"])
    outcome = Outcome(**wide, dtypes={name: dtypes[name] for kind in ("outputs", "grads") for name in wide[kind]})
    return Trace(case, drawn, outcome, about["who"], about=json.loads(about["about"]), **json.loads(about["how"]))


def foreign(path: str, held: dict[str, np.ndarray], like: Trace | None, names: Mapping[str, str | None]) -> Trace:
    """Arrays of somebody else: a partial trace of the call that another trace describes."""
    if not isinstance(names, Mapping) or not all(x is None or isinstance(x, str) for x in names.values()):
        raise ValueError(f"{path}: expected names as a map from theirs to ours, got {names!r}; give one JSON object")
    if like is None:
        raise ValueError(
            f"{path}: expected a trace, got other arrays; compare it with a trace, which says what the arrays are"
        )
    parts: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in KINDS}
    known = {f"{kind}.{name}" for kind, part in like.parts() for name in part}
    unused = [name for name in names if name not in held]
    if unused:
        raise ValueError(
            f"{path}: expected names of its arrays to be mapped, got {unused[0]!r}; "
            f"{contract.did_you_mean(unused[0], sorted(held))}"
        )
    for theirs, x in held.items():
        ours = names.get(theirs, theirs)
        if ours is None:
            continue
        ours = ours if ours in known else next((k for k in sorted(known) if k.partition(".")[2] == ours), ours)
        if ours not in known:
            raise ValueError(
                f"{path}: expected names of the trace, got {theirs!r}; map it with --names, to null to leave it out. "
                f"{contract.did_you_mean(ours, sorted(known))}"
            )
        kind, _, name = ours.partition(".")
        if name in parts[kind]:
            raise ValueError(f"{path}: expected one array for {ours}, got two, the second {theirs!r}; map it to null")
        want = dict(like.parts())[kind][name].shape
        if kind in KINDS[:3] and x.shape != want:
            raise ValueError(
                f"{path}: expected {ours} of the shape {want}, as in the trace, got {x.shape}; run it on what the "
                f"trace holds, or map it to null with --names"
            )
        parts[kind][name] = x
    if not any(parts[kind] for kind in KINDS[3:]):
        raise ValueError(
            f"{path}: expected results of a run, got {', '.join(kind for kind in KINDS if parts[kind]) or 'nothing'} "
            f"alone; record a trace: attn-parity trace --like"
        )
    drawn = Drawn(
        dict(like.drawn.inputs) | parts["inputs"],
        dict(like.drawn.params) | parts["params"],
        0,
        dict(like.drawn.pulled) | parts["pulled"],
    )
    order = list(like.outcome.tape)
    tape = {name: widened(parts["tape"][name]) for name in sorted(parts["tape"], key=order.index)}
    wide: dict[str, Any] = {
        kind: {name: widened(x) for name, x in parts[kind].items()} for kind in KINDS[3:] if kind != "tape"
    }
    dtypes = {name: like.case.dtype for kind in ("outputs", "grads") for name in parts[kind]}
    return Trace(like.case, drawn, Outcome(**wide, tape=tape, dtypes=dtypes), path, partial=True)


def cast(drawn: Drawn, dtype: str) -> Drawn:
    """The same call in another type, each number rounded once."""

    def to(part: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {n: x if x.dtype == bool or x.dtype.kind in "iu" else x.astype(DTYPES[dtype]) for n, x in part.items()}

    return Drawn(to(drawn.inputs), to(drawn.params), drawn.seed, to(drawn.pulled))


def candidate(framework: str, device: str = "cpu", jit: bool = False) -> Candidate:
    """One of our trees as a candidate on a named device.

    Raises:
        ValueError: the framework has no such device.
    """
    mode = {"numpy": "by hand", "torch": "eager", "jax": "jit" if jit else "eager"}[framework]
    if jit and framework != "jax":
        raise ValueError(f"trace: expected jax where --jit is set, got {framework!r}; leave --jit out")
    if framework == "numpy" and device != "cpu":
        raise ValueError(f"trace: expected the device cpu for numpy, got {device!r}; choose another framework")
    if framework == "numpy":
        return Candidate(framework, mode, "cpu", run_numpy)
    known = ["cpu", *accelerators(framework)]
    if device not in known:
        raise ValueError(f"trace: expected a device of {framework}, got {device!r}; choose one of {', '.join(known)}")
    if framework == "torch":
        return Candidate(framework, mode, device, partial(run_torch, device=device))
    return Candidate(framework, mode, device, partial(run_jax, device=device, jit=jit))
