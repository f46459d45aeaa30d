"""The judge as a library: `assert_parity` and `replay` for an implementation of your own."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from attn_np import contract
from attn_np.contract import Config
from attn_np.weights._progress import progress
from parity_tests.bounds.precision import precision_of
from parity_tests.explain.verdicts import FORWARD
from parity_tests.judge.cases import CALLS
from parity_tests.judge.judging import Row, reference
from parity_tests.ports.adapters import port
from parity_tests.ports.differences import difference, first_wrong
from parity_tests.ports.names import Names, Weights, framework_of
from parity_tests.ports.plan import Plan, Run, longer_run, louder_run, runs, shorter_run
from parity_tests.ports.port import Port
from parity_tests.ports.sizes import asked_sizes
from parity_tests.ports.trace import Trace, record
from parity_tests.ports.unjudged import Look, Unjudged, look_at, unjudged
from parity_tests.ports.untested import Undetermined, Untested, left_by_both
from parity_tests.ports.verdict import ParityError, UntestedError, Verdict
from parity_tests.ports.watch import narrower

__tracebackhide__ = True  # pytest shows the test and what was found, not the way between them
OWN_CALLS = (*CALLS, "self")


def assert_parity(
    candidate: Any,
    variant: str,
    config: Config | Mapping[str, Any] | None = None,
    *,
    weights: Weights = None,
    arguments: Mapping[str, Any] | None = None,
    outputs: tuple[Any, ...] = ("y",),
    taps: Mapping[str, Any] | None = None,
    call: Any = None,
    vjp: Callable[..., Any] | None = None,
    framework: str | None = None,
    dtype: str | None = None,
    calls: tuple[str, ...] = OWN_CALLS,
    empty_rows: bool = True,
    length: int | None = None,
    sizes: Mapping[str, int] | None = None,
    batch: int | None = None,
    strict: bool = False,
    seed: int = 0,
    device: str | None = None,
    **fields: Any,
) -> Verdict:
    """Judge an implementation of your own against the float64 reference: outputs, gradients and what it records.

    The candidate is called with random inputs of odd sizes, as many of our arguments as it takes, and, for a function,
    with random weights as its first argument, a dictionary under our names. A module's own weights are read and stay
    as they are. Nothing is put into evaluation mode: do that first.

    What a candidate means is judged in float64, where a wrong eps shows, and its numbers in its own type: first a copy
    of a module with its weights in float64, or the function with float64 arrays, then the candidate as it is. Where it
    cannot be had in float64, because something in it computes in a fixed type, the verdict says why.

    An agreement says no more than its inputs show: of 5 positions, a window of 4095 hides none. So the reference also
    runs with every field of the config off, at its default, halved, doubled and one more (words and flags: every other
    one), where this means something else and the weights fit. Where some of these move no number beyond its bound, or
    entries of weights play no part, and a sequence of up to 257 positions shows them, the candidate is judged on that,
    too. What then is not told apart stands in the verdict's `untested`. Inputs are normal numbers of the size of 1; in
    the own type the first call runs again, forward alone, with inputs so large that `exp` of a score overflows, which a
    softmax without its largest score subtracted does not survive. A batch has two sequences, and cross-attention fewer
    queries than keys; `batch=` and `sizes=` ask for others, such as `sizes={"t": 11, "s": 5}`.

    A bound that is wider than its array would let any number pass. Where most bounds of an array are, or zeros in its
    place would be within them, as the gradients of a long recurrence, the candidate is judged on a shorter sequence,
    too. What then is not judged stands in the verdict's `unjudged`. An array that is 0 but for roundings, as the
    gradient of a key's bias, is judged all the same.

    Args:
        candidate: a torch module, a Flax NNX module, a Linen module with its variables as a tuple, an Equinox module,
            or a function; of NumPy arrays unless `framework` says otherwise.
        variant: the variant or preset that it should be, such as "mha" or "sliding_window".
        config: the variant's Config, or its fields.
        weights: how its parameters map to ours: see `parity_tests.ports.names.Names`, as for the next five.
        arguments, outputs, taps, call: how its arguments, results, submodules and call map to ours.
        vjp: the backward pass of a function of NumPy arrays: `vjp(weights, query, ..., dy=dy)` is called as the
            function is, and returns a dictionary of gradients by our names.
        framework: "torch", "jax" or "numpy": whose arrays a function takes.
        dtype: of inputs and weights, the only one that is judged. By default float64, and then that of a module's
            weights or float32 for a function of tensors or JAX arrays.
        calls: which of "plain", "full", "shared" and "self" (see `parity_tests.judge.cases.Case`).
        empty_rows: whether masks hide every key from some query. The reference gives 0 there, a plain softmax NaN or
            the mean of the values: False leaves such masks out.
        length: of the sequence, the axis t; keys of another sequence are two more. By default a few positions, and
            more where they show more of the config.
        sizes: of the axes that the config leaves open, by letter, such as `{"t": 8, "s": 16}` for an implementation
            that needs lengths divisible by 8. With `length` or `sizes` no other length is judged.
        batch: how many sequences; 2 by default.
        strict: whether a field that the runs do not determine is an error, and an array that they do not judge.
        seed: of everything random.
        device: where it runs, "cpu", "cuda" or another of its framework; a module is copied there. By
            default its own; the CPU for JAX.
        fields: the Config's fields, in place of `config`.

    Returns:
        The verdict on every array.

    Raises:
        ParityError: it differs; the message names the first difference and the mistake that explains it. Or, with
            `strict`, that other values of its fields agree, too, or that an array was not judged in any type.
        MissingDeviceError: there is no such device.
        ValueError, TypeError: names, fields or shapes that do not fit.
    """
    made = config_of("assert_parity", variant, config, fields)
    unknown = [call for call in calls if call not in OWN_CALLS]
    if unknown or not calls:
        got = repr(unknown[0]) if unknown else "none"
        raise ValueError(f"assert_parity: expected calls= of {', '.join(OWN_CALLS)}, got {got}; name one or more")
    names = Names(weights, arguments, outputs, taps or {}, call, vjp=vjp)
    plan = Plan(made, calls, empty_rows, seed, names, asked_sizes("assert_parity", made, length, sizes, batch))
    seeing = replace(plan, empty_rows=False)

    def longer(found: Port, traces: list[Trace], left: Undetermined) -> Run:
        return longer_run(found, traces, left, plan, tell)

    def shorter(found: Port, look: Look, trace: Trace) -> Run:
        return shorter_run(found, look, trace, plan, tell)

    def louder(found: Port, traces: list[Trace], note: str) -> None:
        trace, words = louder_run(found, traces, tell)
        if trace is not None:
            judged_rows(found, [trace], names, "; ".join(filter(None, (words, note))))

    with progress("assert_parity") as tell:
        verdict = judged_in_types(
            lambda kind: port(candidate, made, names, framework, kind, device),
            lambda found: runs(found, plan, tell),
            lambda found, traces, note: judged_rows(
                found, traces, names, note, (lambda: runs(found, seeing, tell)) if empty_rows else None
            ),
            framework or framework_of(candidate),
            dtype,
            longer if length is None and sizes is None else None,
            shorter if length is None and sizes is None else None,
            louder,
        )
    if strict and verdict.open:
        raise UntestedError(verdict)
    return verdict


def config_of(who: str, variant: str, config: Config | Mapping[str, Any] | None, fields: Mapping[str, Any]) -> Config:
    """The Config of a call, which gives it or its fields.

    Raises:
        ValueError: another variant's, or a Config and fields.
    """
    made = config if isinstance(config, Config) else contract.config(variant, **dict(config or {}), **fields)
    behind, preset = contract.presets().get(variant, (variant, None))
    if made.variant != behind:
        raise ValueError(f"{who}: expected a Config of {variant}, got one of {made.variant}; name its variant")
    if fields and made is config:
        raise ValueError(f"{who}: expected a Config or fields, got both, {', '.join(fields)}; give one of them")
    fields = {} if preset is None else preset.fields
    other = differing_fields(made, fields) if made is config else {}
    if other:
        want = ", ".join(f"{name}={fields[name]!r}" for name in other)
        got = ", ".join(f"{name}={value!r}" for name, value in other.items())
        raise ValueError(f"{who}: expected a Config with the fields of {variant}, {want}, got {got}; name {behind}")
    return made


def differing_fields(config: Config, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config that are not those of some fields."""
    return {name: getattr(config, name) for name, value in fields.items() if getattr(config, name) != value}


Check = Callable[[Port, list[Trace], str], list[Row]]
Longer = Callable[[Port, list[Trace], Undetermined], Run]
Shorter = Callable[[Port, Look, Trace], Run]
Louder = Callable[[Port, list[Trace], str], None]
Wide = tuple["list[Row]", "InOneType | None", str, str]


def judged_in_types(
    made: Callable[[str | None], Port],
    run: Callable[[Port], Iterable[Trace]],
    check: Check,
    framework: str,
    dtype: str | None,
    longer: Longer | None = None,
    shorter: Shorter | None = None,
    louder: Louder | None = None,
) -> Verdict:
    """The verdict on a candidate in float64 and in its own type; in one type where `dtype` names it.

    Args:
        made: gives the port in a type.
        run: gives its traces.
        check: gives the verdicts on them; raises ParityError, with a note to add to its message.
        longer: gives the run of a longer sequence where one shows more of the config.
        shorter: gives the run of a shorter sequence where one judges arrays that a trace does not.
        louder: judges a run with large scores, after all that agreed; raises ParityError as `check` does.
    """
    found = made(dtype)
    rows, wide, why, part = list[Row](), None, "", ""
    if dtype is None and found.dtype != "float64":
        with float64_in_jax(framework):
            rows, wide, why, part = judged_wide(lambda: made("float64"), run, check, longer, shorter)
    traces = list(run(found))
    agrees = "in float64 it agrees" + (" on shorter sequences" if wide and wide.narrower else "")
    note = f"{part or agrees}; this is in {found.dtype}" if rows else ""
    note = f"not judged in float64: {why}" if why else note
    own = judged_in_type(found, traces, check, longer if wide is None or wide.narrower else None, shorter, note)
    if louder is not None and traces:
        louder(found, traces, note)
    notes = [*found.notes, *([note] if why else [part] if part else []), *(wide.notes if wide else [])]
    by_call = own.traces | (wide.others if wide else {})
    untested = (wide or own).undetermined()
    if wide is not None and wide.narrower:
        untested = left_by_both(untested, own.undetermined())
    loose = [*(wide.unjudged if wide else []), *own.unjudged]
    return Verdict(rows + own.rows, by_call, untested, why, found.not_given, list(dict.fromkeys(notes)), loose)


@dataclass(frozen=True)
class InOneType:
    """A candidate that agrees in one type.

    Attributes:
        rows, traces, unjudged, notes: those of a `Verdict`.
        others: the traces of longer and shorter sequences, also among `traces`.
        undetermined: gives the fields of the config that the traces do not determine.
        narrower: a longer sequence was not judged in float64.
    """

    rows: list[Row]
    traces: dict[str, Trace]
    others: dict[str, Trace]
    unjudged: list[Unjudged]
    notes: list[str]
    undetermined: Callable[[], list[Untested]]
    narrower: bool = False


def judged_in_type(
    found: Port, traces: list[Trace], check: Check, longer: Longer | None, shorter: Shorter | None, note: str
) -> InOneType:
    """A candidate that agrees in the type of its traces.

    Raises:
        ParityError: it differs.
    """
    rows, by_call = check(found, traces, note), {trace.case.call: trace for trace in traces}
    if not traces:
        return InOneType(rows, by_call, {}, [], list(found.notes), lambda: [])
    undetermined, more, narrower = Undetermined(traces[0].case.config), dict[str, Trace](), False
    looks = [look_at(trace) for trace in traces]
    for look, trace in zip(list(looks), traces, strict=True):
        run = shorter(found, look, trace) if shorter is not None and look.loose else Run()
        if run.trace is not None:
            words = f"in a sequence of {run.trace.case.example}, whose bounds are narrower"
            rows = rows + check(found, [run.trace], "; ".join(filter(None, (words, note))))
            looks.append(look_at(run.trace))
            more[f"{run.trace.case.example}, as in the call {trace.case.call}"] = run.trace
    if longer is not None:
        undetermined.look([*traces, *more.values()])
        run = longer(found, traces, undetermined)
        narrower = run.narrower
        if run.finding is not None:
            raise ParityError(run.finding, note)
        if run.trace is not None:
            undetermined.look([run.trace])
            looks.append(look_at(run.trace))
            rows, more[run.trace.case.example] = rows + run.trace.verdicts()[0], run.trace

    def left() -> list[Untested]:
        if longer is None:
            undetermined.look([*traces, *more.values()])
        return undetermined.untested([*traces, *more.values()])

    for look in looks:
        rows = [look.settled(row) for row in rows]
    return InOneType(rows, by_call | more, more, unjudged(looks), list(found.notes), left, narrower)


def judged_rows(
    found: Port,
    traces: list[Trace],
    names: Names,
    note: str,
    seeing: Callable[[], Iterable[Trace]] | None = None,
) -> list[Row]:
    """The verdicts on a candidate's traces.

    Args:
        found, traces, names: the candidate, its runs, and how its names map to ours.
        note: to add to a message.
        seeing: gives its runs on masks that leave every query a key; None where the masks are these.

    Raises:
        ParityError: one of them differs.
    """
    by_trace = [trace.verdicts()[0] for trace in traces]
    rows = [row for part in by_trace for row in part]
    wrong = first_wrong(traces, by_trace)
    if wrong is not None:
        raise ParityError(*difference(found, traces, wrong, names, note, seeing))
    refuse_unjudged(traces, rows, names)
    return rows


WIDE = "judged in float64, which shows what is meant: a copy of it, or the function with such arrays"


def judged_wide(
    copied: Callable[[], Port],
    run: Callable[[Port], Iterable[Trace]],
    check: Check,
    longer: Longer | None,
    shorter: Shorter | None,
) -> Wide:
    """The verdicts on a candidate in float64 and what they determine; none, and why, where it cannot be had in it; and
    what was left out of them.

    Raises:
        ParityError: it differs, and computes in float64 alone.
    """
    try:
        found = copied()
        traces = list(run(found))
    except Exception as error:  # whatever a candidate raises in a type that it was not made for
        return [], None, f"it raised {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}", ""
    rows = [row for trace in traces for row in trace.verdicts()[0]]
    if not all(row.ok for row in rows):
        why, part = narrower(found.watch, rows)
        if why:
            return [], None, why, ""
        if part:
            forward = [row for row in rows if row.stage in FORWARD]
            return forward, None, "", f"gradients not judged in float64: {part}"
    wide = judged_in_type(found, traces, check, longer, shorter, WIDE)
    return wide.rows, wide, "", ""


@contextmanager
def float64_in_jax(framework: str) -> Iterator[None]:
    """Let JAX compute in float64 meanwhile."""
    if framework != "jax":
        yield
        return
    import jax

    with jax.enable_x64(True):
        yield


def refuse_unjudged(traces: Iterable[Trace], rows: list[Row], names: Names) -> None:
    """What was asked for and never compared would be taken for right.

    Raises:
        ValueError: a tap that recorded nothing, or a recorded name that the reference does not have.
    """
    recorded = {name: None for trace in traces for name in trace.outcome.tape}
    for pattern, named in names.taps.items():
        ours = named if isinstance(named, str) else named[0]
        if ours not in recorded:
            raise ValueError(
                f"assert_parity: expected an array from {pattern!r} in taps=, got none in any call; "
                f"what it names must run in the call and return a tensor"
            )
    judged = tuple(dict.fromkeys(row.name for row in rows if row.stage == "tape"))
    known = tuple(dict.fromkeys(name for trace in traces for name in reference_names(trace)))
    for name in recorded:
        if name not in judged:
            raise ValueError(
                f"assert_parity: expected intermediates under the names on our tape, got {name!r}, which none of the "
                f"calls has; {contract.did_you_mean(name, known)}"
            )


def reference_names(trace: Trace) -> tuple[str, ...]:
    """The names of the forward pass on the reference's tape."""
    tape: dict[str, Any] = {}
    reference(trace.case, trace.drawn, tape, precision_of(trace.case.dtype), backward=False)
    return tuple(tape)


def replay(
    trace: Trace,
    candidate: Any,
    *,
    weights: Weights = None,
    arguments: Mapping[str, Any] | None = None,
    outputs: tuple[Any, ...] = ("y",),
    taps: Mapping[str, Any] | None = None,
    call: Any = None,
    vjp: Callable[..., Any] | None = None,
    framework: str | None = None,
    device: str | None = None,
) -> Trace:
    """Run an implementation of your own on the call of a trace: its inputs, its incoming gradients, its weights.

    A module keeps its own weights; `compare` says if they are not those of the trace. The arguments are those of
    `assert_parity`.

    Raises:
        ValueError, TypeError: names, fields or shapes that do not fit, or an input of the trace that it does not take.
    """
    case, names = trace.case, Names(weights, arguments, outputs, taps or {}, call, vjp=vjp)
    found = port(candidate, case.config, names, framework, None, device)
    left = [name for name in trace.drawn.inputs if name not in found.arguments]
    if left:
        raise ValueError(
            f"replay: expected a candidate that takes every input of the trace, got one without {', '.join(left)}; "
            f"map it with arguments=, or record a trace without it"
        )
    absent = [name for name in found.required if name not in trace.drawn.inputs]
    if absent:
        raise ValueError(
            f"replay: expected a trace with every input that the candidate cannot do without, got one without "
            f"{', '.join(absent)}; record a trace with it, or call the candidate without it by call="
        )
    if found.params and found.dtype != case.dtype:
        raise ValueError(
            f"replay: expected a module in {case.dtype}, as the trace, got {found.dtype}; convert it, or record the "
            f"trace in its type: attn-parity trace --like FILE --dtype {found.dtype}"
        )
    drawn = trace.drawn if found.params is None else replace(trace.drawn, params=found.params)
    replayed = record(found.candidate, case, drawn, partial=True)
    refuse_unjudged([replayed], replayed.verdicts()[0], names)
    return replayed
