"""`assert_kernel`: a kernel judged by cases within its limits, and the verdict in words."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from time import monotonic
from typing import Any

import numpy as np

from attn_np.weights._progress import progress
from parity_tests.kernels import arithmetic as arithmetics
from parity_tests.kernels.arithmetic import Arithmetic, classes_of
from parity_tests.kernels.calling import Answer, Kernel
from parity_tests.kernels.canonical import Case, Results
from parity_tests.kernels.causes import BLOCKS, causes, explaining
from parity_tests.kernels.child import Child
from parity_tests.kernels.drawing import SHORT, allowed, options_of, specs
from parity_tests.kernels.judging import Difference, differences, unjudged
from parity_tests.kernels.likes import Like, like_of
from parity_tests.kernels.limits import OPTIONS, Limits
from parity_tests.kernels.mistakes import MISTAKES
from parity_tests.kernels.shrinking import smaller
from parity_tests.kernels.snippet import snippet
from parity_tests.kernels.specs import Spec, case_of

ALL_SECONDS = 1800.0
# A class by this name: of each type its narrowest.
NARROWEST = "narrowest"
# Failures after which a run ends: more of them say no more.
FAILURES = 12
SHRINK_SECONDS = 30.0
WORDS = {"numbers": "wrong numbers", "complaint": "a broken promise", "error": "an error"}
WORDS_OF = {"queries": "queries", "keys": "keys", "head_dims": "widths of keys", "value_dims": "widths of values"}
# Small cases, right and wrong, that a cause must explain.
EXPLAINED = 6
# How many more are asked where several causes explain these.
MORE = 100


@dataclass(frozen=True)
class Failure:
    """A case that a kernel got wrong.

    Attributes:
        spec: the case.
        kind: "numbers", "complaint" or "error".
        words: what was wrong.
        differences: the results beyond their bounds, if numbers are.
        answer: what the kernel did.
    """

    spec: Spec
    kind: str
    words: str
    answer: Answer
    differences: tuple[Difference, ...] = ()


@dataclass
class Verdict:
    """What a kernel was found to be.

    Attributes:
        name, like: of the kernel and of the signature.
        classes: by dtype the narrowest class of arithmetic that holds in every row of every case.
        cases, numbers: by dtype how many were judged.
        unjudged: by dtype and result how many numbers had no bound in the class that held.
        not_asked: what the signature has and the kernel does not take, or was not asked in the time.
        failures: cases that it got wrong.
        smallest: the first of them, shrunk.
        code: that one as a snippet.
        cause, fix: the known mistake that gives its numbers, and what to do.
        hint: where there is no cause: how many known mistakes were tried, or what limits may lack.
        seconds: how long it took.
    """

    name: str
    like: str
    classes: dict[str, Arithmetic] = field(default_factory=dict)
    cases: Counter[str] = field(default_factory=Counter)
    numbers: Counter[str] = field(default_factory=Counter)
    unjudged: dict[str, Counter[str]] = field(default_factory=dict)
    not_asked: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    smallest: Failure | None = None
    code: str = ""
    cause: str = ""
    fix: str = ""
    hint: str = ""
    seconds: float = 0.0

    @property
    def agrees(self) -> bool:
        return not self.failures and sum(self.cases.values()) > 0

    def __str__(self) -> str:
        word = "agrees" if self.agrees else "differs" if self.failures else "not judged"
        found = [f"{self.name} as {self.like}: {word}"]
        for dtype, count in self.cases.items():
            held = f", within {self.classes[dtype]}" if dtype in self.classes else ""
            found.append(f"  {dtype}: {count:,} cases, {self.numbers[dtype]:,} numbers{held}")
            open_ones = +self.unjudged.get(dtype, Counter())
            if open_ones:
                each = ", ".join(f"{n:,} of {name}" for name, n in sorted(open_ones.items()))
                found.append(f"  {dtype}: {open_ones.total():,} numbers without a bound, not judged: {each}")
        if not self.cases:
            found.append("  no case was judged: the limits leave none")
        if self.smallest is not None:
            kinds = Counter(failure.kind for failure in self.failures)
            said = ", ".join(f"{n} with {WORDS[kind]}" for kind, n in kinds.items())
            n = len(self.failures)
            found += [f"  failed: {n} case{'s' if n > 1 else ''} ({said})", f"  smallest: {self.smallest.spec}"]
            found += [f"  {line}" for line in self.smallest.words.split("\n")]
            others = sorted({f.words.split("\n")[0] for f in self.failures} - {self.smallest.words.split("\n")[0]})
            found += [f"  also: {words}" for words in others[:4]]
        if self.cause:
            found += [
                f"  cause: {self.cause}",
                "  evidence: a simulated kernel with this mistake gives these numbers, within the bounds",
                f"  fix: {self.fix}",
            ]
        found += [f"  {self.hint}"] if self.hint else []
        if self.code:
            found += ["", *(f"    {line}" for line in self.code.split("\n")), ""]
        if self.not_asked:
            found.append(f"  not asked: {', '.join(self.not_asked)}")
        return "\n".join(found)


class KernelError(AssertionError):
    """A kernel that differs from its signature's meaning, or from its promises.

    Attributes:
        verdict: all that was found.
    """

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


class Referee:
    """Judges the answers of a kernel one after the other.

    Attributes:
        kernel: the kernel.
        classes: by dtype those that may still hold, from the narrowest.
        verdict: so far.
        kept: small cases and their results, for the search for a cause.
    """

    def __init__(self, kernel: Kernel, arithmetic: Arithmetic | str | None) -> None:
        self.kernel, self.kept = kernel, list[tuple[Spec, Answer]]()
        self.classes: dict[str, list[Arithmetic]] = {}
        for dtype in kernel.limits.dtypes:
            every = classes_of(dtype)
            widest = every.index(arithmetic) if arithmetic in every else len(every) - 1
            self.classes[dtype] = list(every[: 1 if arithmetic == NARROWEST else widest + 1])
        self.verdict = Verdict((kernel.name or name_of(kernel.f)).rpartition(":")[2], kernel.like.name)

    def widest(self, dtype: str) -> Arithmetic:
        """The widest class that the kernel may have."""
        return self.classes[dtype][-1]

    def wrong(self, spec: Spec, answer: Answer) -> Failure | None:
        """What is wrong with an answer, by the widest class."""
        if answer.raised:
            return Failure(spec, "error", f"it raises {answer.raised}", answer)
        if answer.complaints:
            return Failure(spec, "complaint", "\n".join(answer.complaints), answer)
        found = differences(spec, self.kernel.limits, answer, self.widest(spec.dtype))
        if not found:
            return None
        words = "\n".join(said(difference, self.widest(spec.dtype)) for difference in found)
        return Failure(spec, "numbers", words, answer, tuple(found))

    def judge(self, spec: Spec, answer: Answer) -> Failure | None:
        """Count an answer, and narrow down the classes that hold."""
        failure, dtype = self.wrong(spec, answer), spec.dtype
        self.verdict.cases[dtype] += 1
        if spec.t * spec.s * spec.h <= 3 * min(self.kernel.limits.block, SHORT) ** 2 or failure is not None:
            self.kept.append((spec, answer))
        held = self.classes[dtype]
        if failure is not None:
            self.verdict.failures.append(failure)
        else:
            while len(held) > 1 and differences(spec, self.kernel.limits, answer, held[0]):
                held.pop(0)
        self.count(spec, answer, held[0] if failure is None else held[-1])
        return failure

    def count(self, spec: Spec, answer: Answer, arithmetic: Arithmetic) -> None:
        """Count the numbers that a class has a bound for, and those that it has none for."""
        unbounded = unjudged(spec, self.kernel.limits, answer, arithmetic)
        self.verdict.unjudged.setdefault(spec.dtype, Counter()).update(unbounded)
        self.verdict.numbers[spec.dtype] += sum(x.size for x in answer.results.values()) - unbounded.total()

    def explain(self, ask: Callable[[Spec], Answer], more: Iterable[Spec]) -> None:
        """Say the cause, where a known mistake explains what is wrong and what is right.

        Where several do, the kernel is asked more cases until they tell which.
        """
        failing = [f for f in self.verdict.failures if f.kind == "numbers" and f.spec.dtype == self.dtype_of_failures]
        if not failing:
            return
        # Simulated kernels have no promise about NaN at hidden keys.
        failing = [f for f in failing if "hidden" not in f.spec.poison] or failing
        failing = sorted(failing, key=lambda f: size(f.spec))[:EXPLAINED]
        wrong = {f.spec for f in self.verdict.failures}
        same_type = [(s, a) for s, a in self.kept if s.dtype == self.dtype_of_failures]
        right = [(s, a) for s, a in same_type if s not in wrong and "hidden" not in s.poison]
        right = sorted(right, key=lambda x: (-len(x[0].options), size(x[0])))[:EXPLAINED]
        results: list[tuple[Case, Results]] = [
            (case_of(s, self.kernel.limits), a.results) for s, a in [*((f.spec, f.answer) for f in failing), *right]
        ]
        blocks, widest = tuple(dict.fromkeys((self.kernel.limits.block, *BLOCKS))), self.widest(self.dtype_of_failures)
        found = causes(results, widest, blocks)
        for spec in more:
            if len(found) < 2:
                break
            spec = replace(spec, poison=())
            if spec.dtype == self.dtype_of_failures and (answer := ask(spec)).results and not answer.complaints:
                found = explaining(case_of(spec, self.kernel.limits), answer.results, widest, blocks, found)
        tried = sum(results[0][0].kind in mistake.kinds for mistake in MISTAKES)
        if len(found) == 1:
            self.verdict.cause, self.verdict.fix = found[0].name, found[0].fix
        elif found:
            self.verdict.hint = f"cause: not told apart: {'; '.join(mistake.name for mistake in found)}"
        else:
            self.verdict.hint = f"cause: none of {tried} known mistakes gives these numbers"

    @property
    def dtype_of_failures(self) -> str:
        """The type that most failures are of."""
        return Counter(f.spec.dtype for f in self.verdict.failures if f.kind == "numbers").most_common(1)[0][0]

    def shrink(self, ask: Callable[[Spec], Answer], end: float) -> None:
        """The smallest case that fails in the same way, and its snippet."""
        first = min(self.verdict.failures, key=lambda f: (f.kind != "numbers", "within" in f.words, size(f.spec)))
        best, again = first, True
        while again and "does not return" not in first.words:
            again = False
            for spec in smaller(best.spec, self.kernel.limits):
                if monotonic() > end:
                    break
                if not allowed(spec, self.kernel.like, self.kernel.limits):
                    continue
                failure = self.wrong(spec, ask(spec))
                if failure is not None and failure.kind == first.kind:
                    best, again = failure, True
                    break
        self.verdict.smallest = best
        if best.kind == "error":
            self.verdict.hint = untaken(best.spec)
        if best.differences:
            worst = max(best.differences, key=lambda d: (not d.name.startswith("d"), d.ratio))
            self.verdict.code = snippet(
                self.kernel, best.spec, worst.name, worst.at, worst.got, worst.want, best.answer.named
            )


def size(spec: Spec) -> int:
    """About how many numbers a case has, in scores."""
    return spec.b * spec.h * (spec.t + 1) * (spec.s + 1) * (1 + len(spec.options))


def untaken(spec: Spec) -> str:
    """What to say where a kernel raises because it does not take what a case asks for."""
    found = [f'without {", ".join(sorted(spec.options))} in "options"'] if spec.options else []
    found += ['with "forward_only": true'] if spec.grads else []
    return f"if the kernel does not take this: limits {' and '.join(found)}" if found else ""


def said(difference: Difference, arithmetic: Arithmetic) -> str:
    """A difference in words, by the bounds of a class of arithmetic."""
    names = {"y": "the output", "lse": "the log-sum-exp", "last": "the last state"}
    d, rows = difference, difference.rows
    name = names.get(d.name, f"the gradient of {d.name[1:]}")
    if np.isfinite(d.ratio):
        times = f"error/bound {d.ratio:.3g} ({arithmetic})"
    else:
        times = (
            "no error is allowed there"
            if np.isfinite(d.got) and np.isfinite(d.want)
            else f"in no class up to {arithmetic}"
        )
    return (
        f"{name} differs: got {d.got:.6g}, expected {d.want:.6g} at {d.at}, {times}; "
        f"{d.wrong} of {d.total} numbers, in {rows[0]} of {rows[1]} rows"
    )


def name_of(f: Any) -> str:
    """What a kernel is called."""
    inner = getattr(f, "func", f)  # of functools.partial
    return getattr(f, "__name__", None) or getattr(inner, "__name__", type(f).__name__)


def sizes_of(spec: Spec) -> dict[str, int]:
    """The largest sizes that a case has, by the fields of `Limits`."""
    of_q, of_k = (max(np.diff(starts), default=0) if starts else 0 for starts in (spec.of_q, spec.of_k))
    lengths = (of_q, of_k) if spec.of_q else (spec.t, max(spec.lengths) if spec.page and spec.lengths else spec.s)
    return {"queries": int(lengths[0]), "keys": int(lengths[1]), "head_dims": spec.d, "value_dims": spec.dv}


def not_asked(like: Like, limits: Limits, asked: Counter[str], largest: Mapping[str, int]) -> list[str]:
    """What stays open: what the kernel does not take, and what no case has asked for."""
    has = options_of(like, limits)
    found = [f"{name} (not taken)" for name in like.takes if name not in has]
    found += [f"{name} (no case)" for name in like.takes if name in has and not asked[name]]
    found += [f"{' with '.join(pair)} (not taken)" for pair in limits.apart]
    found += [f"{parameter}= (in no case)" for parameter in like.unasked]
    for name, n in largest.items():
        sizes = None if name == "keys" and like.same_lengths else getattr(limits, name)
        if sizes is not None and n < sizes.largest:
            found.append(f"{WORDS_OF[name]} beyond {n}")
    if limits.forward_only:
        found.append("gradients (not taken)")
    elif not asked["gradients"]:
        found.append("gradients (no case)")
    elif limits.gradients is not None:
        found.append(f"gradients of others than {', '.join(limits.gradients)}")
    if like.lse is not None and not limits.lse:
        found.append("log-sum-exp (not taken)")
    if limits.empty_rows == "undefined" and "state" not in like.takes:
        found.append("queries without keys (undefined)")
    none = [name for name in OPTIONS if name not in like.takes and name in ("window", "softcap", "sinks", "bias")]
    return [*found, *(f"{name} (not in the signature)" for name in none if like.kinds != ("recurrent",))]


def arithmetic_of(arithmetic: "str | Arithmetic | None") -> Arithmetic | str | None:
    """A class by its name.

    Raises:
        ValueError: an unknown one.
    """
    if arithmetic in (None, NARROWEST) or isinstance(arithmetic, Arithmetic):
        return arithmetic
    for known in arithmetics.CLASSES:
        if known.name == arithmetic:
            return known
    names = "; ".join((*(known.name for known in arithmetics.CLASSES), NARROWEST))
    raise ValueError(f"arithmetic: expected one of {names}, got {arithmetic!r}; use one of them")


def judge_kernel(
    f: Callable[..., Any],
    like: "str | Like",
    limits: "Limits | Mapping[str, Any] | None" = None,
    arithmetic: "str | Arithmetic | None" = None,
    *,
    backward: Callable[..., Any] | None = None,
    framework: str | None = None,
    seconds: float = 60.0,
    all: bool = False,
    cases: int | None = None,
    seed: int = 0,
    call_seconds: float = 30.0,
    name: str | None = None,
) -> Verdict:
    """The verdict on a kernel; see `assert_kernel`."""
    like = like_of(like)
    limits = like.limits.but(**(limits or {})) if not isinstance(limits, Limits) else limits
    framework = framework or like.framework
    if framework == "numpy" and backward is None:
        limits = limits.but(forward_only=True)
    kernel = Kernel(f, like, limits, framework, backward, name)
    referee = Referee(kernel, arithmetic_of(arithmetic))
    verdict = referee.verdict
    asked: Counter[str] = Counter()
    largest: dict[str, int] = {}
    drawn: Iterator[Spec] = specs(like, limits, seed)
    with progress(f"assert_kernel {verdict.name}") as tell, Child(kernel, call_seconds) as child:
        start = monotonic()  # the process has loaded the kernel
        end = start + (ALL_SECONDS if all else seconds)
        for n, spec in enumerate(islice(drawn, cases)):
            if monotonic() > end or len(verdict.failures) >= FAILURES:
                break
            tell(f"{n} cases, {len(verdict.failures)} wrong, {max(0, end - monotonic()):.0f} s left")
            referee.judge(spec, child.ask(spec))
            asked.update(spec.options | ({"gradients"} if spec.grads else set()))
            largest = {name: max(size, largest.get(name, 0)) for name, size in sizes_of(spec).items()}
        if verdict.failures:
            tell("looking for a smaller case")
            more = min(SHRINK_SECONDS, seconds / 2)
            referee.shrink(child.ask, monotonic() + more)
            tell("looking for the cause")
            until = monotonic() + more
            left = takewhile(lambda _: monotonic() < until, islice(drawn, MORE))
            referee.explain(child.ask, left)
    for dtype, held in referee.classes.items():
        if verdict.cases[dtype] and not any(f.spec.dtype == dtype for f in verdict.failures):
            verdict.classes[dtype] = held[0]
    verdict.not_asked = not_asked(like, limits, asked, largest)
    verdict.seconds = monotonic() - start
    return verdict


def assert_kernel(
    f: Callable[..., Any],
    like: "str | Like",
    limits: "Limits | Mapping[str, Any] | None" = None,
    arithmetic: "str | Arithmetic | None" = None,
    **options: Any,
) -> Verdict:
    """Judge an attention kernel by the meaning of a signature, within what it takes; the verdict if it agrees.

    The kernel runs in a process of its own. A failing case is made as small as it gets and printed as a snippet.

    Args:
        f: the kernel, a function with the arguments of the signature, in its framework.
        like: the signature, by name or as a `Like`: "attend", "recur", "scaled_dot_product_attention", ...
        limits: what the kernel takes and promises where it differs from the signature: fields of `Limits` by name.
        arithmetic: the widest class that is right, by name, or "narrowest" for the narrowest of each type; by default
            the widest that kernels of the type have.
        backward: for NumPy: (dy, *arguments) -> the gradients of queries, keys and values, and others that it has; with
            `lse_gradient` also dlse=, of a recurrence with `last_gradient` also dlast=.
        framework: of the kernel's arrays; that of the signature by default.
        seconds: how long to ask; at most half of it again for a smaller case, and for a cause.
        all: ask for half an hour.
        cases: how many at most.
        seed: of what is drawn.
        call_seconds: how long a call may take.
        name: "package.module:function", where the kernel does not know its own, as a `functools.partial`.

    Raises:
        KernelError: it differs.
        ValueError: limits, a signature or a class that there is none of.
    """
    __tracebackhide__ = True
    verdict = judge_kernel(f, like, limits, arithmetic, **options)
    if not verdict.agrees:
        raise KernelError(verdict)
    return verdict
