"""The matrix: variant x framework x dtype x quantity, judged in parallel, summed up in one verdict."""

from collections.abc import Generator
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from importlib.util import find_spec

from attn_np import contract
from attn_np.contract._package import how_to_install
from parity_tests.bounds.precision import Precision, fast_precision_of, precision_of
from parity_tests.explain.causes import explain
from parity_tests.judge import checkpoint
from parity_tests.judge.candidates import accelerators, attends, candidates, untaped
from parity_tests.judge.cases import ALL_CALLS, Case, cases
from parity_tests.judge.frameworks import DTYPES, FRAMEWORKS, NEEDS, prepare
from parity_tests.judge.judging import judge, judge_call
from parity_tests.judge.result import Result
from parity_tests.judge.workers import workers
from parity_tests.ports.trace import record

USUAL = ("float64", "float32")  # what a run judges that is not asked for everything


@dataclass(frozen=True)
class Plan:
    """What to judge.

    Attributes:
        variants, dtypes, frameworks: what stands on the axes of the matrix.
        device: "cpu", or "accelerator" for every accelerator that is found.
        seed: of all random numbers.
        everything: all examples, not the first of each variant.
        real: also the real layer in examples/, where its variant is among those to judge.
        calls: which of "plain", "full", "shared" and "packed".
        repeat: how many seeds, from `seed` on.
        products: "full", or "tf32": matrix products of float32 may round their factors to TF32, and are judged so.
    """

    variants: tuple[str, ...]
    dtypes: tuple[str, ...] = DTYPES
    frameworks: tuple[str, ...] = FRAMEWORKS
    device: str = "cpu"
    seed: int = 0
    everything: bool = False
    real: bool = False
    calls: tuple[str, ...] = ALL_CALLS
    repeat: int = 1
    products: str = "full"

    def precision(self, dtype: str) -> Precision:
        """What candidates promise in a type."""
        return self.products_of(precision_of(dtype))

    def fast_precision(self, framework: str, dtype: str) -> Precision:
        """What the fast path of a tree promises."""
        return self.products_of(fast_precision_of(framework, dtype))

    def products_of(self, p: Precision) -> Precision:
        return replace(p, product="tf32") if self.products == "tf32" and p.work == "float32" else p


def selected(case: Case, framework: str, mode: str, everything: bool) -> bool:
    """Whether a candidate is judged in a case.

    JAX compiles every case, and that is most of the time. Without `everything` each variant is judged in its first
    example. With it, NumPy and PyTorch take every call in float64 and the full one in the other
    types; jit takes the full call of each example in float64 and, in the other types and without a tape, of one example
    each; op by op, JAX takes the first example in float32.
    """
    examples = list(contract.examples(case.variant))
    first = case.example == examples[0]
    if not everything:
        return first
    if framework != "jax":
        return case.dtype == "float64" or case.call == "full"
    if case.call == "packed" and mode == "jit":
        return case.dtype == "float64"
    if case.call != "full":
        return False
    if mode == "eager":
        return first and case.dtype == "float32"
    alike = case.dtype == "float64" and mode == "jit"
    return alike or (examples.index(case.example) - DTYPES.index(case.dtype)) % len(examples) == 0


Task = tuple[Plan, str, str]
REAL = "real layer"


def tasks(plan: Plan) -> list[Task]:
    """Independent pieces of a plan: the real layer, and one example of one variant each; those with children first."""
    most = None if plan.everything else 1
    found = [
        (plan, variant, example) for variant in plan.variants for example in list(contract.examples(variant))[:most]
    ]
    found.sort(key=lambda task: not contract.examples(task[1])[task[2]].children())
    real = plan.real and checkpoint.EXAMPLE_VARIANT in plan.variants
    return [(plan, REAL, "")] * real + found


def scope(plan: Plan) -> str:
    """What a plan judges, in words, where that is not all there is."""
    if plan.everything:
        return ""
    return f"one example of each variant in {' and '.join(plan.dtypes)}: --all judges the rest"


def work(task: Task) -> Result:
    """Judge one piece, in a process of its own."""
    plan, variant, example = task
    prepare(plan.frameworks, plan.products)
    result = Result()
    if variant == REAL:
        checkpoint.add_example(result, plan.frameworks)
        return result
    found = candidates(plan.device, plan.frameworks, plan.everything)
    calls = untaped(plan.device, plan.frameworks, plan.everything)
    for seed in range(plan.seed, plan.seed + plan.repeat):
        for case in cases([variant], plan.dtypes, seed):
            if case.example != example or case.call not in plan.calls:
                continue
            for candidate in found:
                if not selected(case, candidate.framework, candidate.mode, plan.everything):
                    continue
                try:
                    rows = list(judge(case, candidate, p=plan.precision(case.dtype)))
                    result.rows += rows
                    known = {finding.candidate for finding in result.findings}
                    if not all(row.ok for row in rows) and candidate.name not in known:
                        result.findings += filter(
                            None,
                            [explain(replace(record(candidate, case).judged(), precision=plan.precision(case.dtype)))],
                        )
                except Exception as e:  # a candidate that raises has failed; the run goes on and reports it
                    result.errors.append(f"{candidate.name}, {case.name}: {type(e).__name__}: {e}")
            for candidate in calls if attends(variant, case.config.class_name) else []:
                if selected(case, candidate.framework, candidate.mode, plan.everything):
                    try:
                        promise = plan.fast_precision(candidate.framework, case.dtype)
                        result.rows += judge_call(case, candidate, p=promise)
                    except Exception as e:  # as above
                        result.errors.append(f"{candidate.name}, {case.name}: {type(e).__name__}: {e}")
    if "jax" in plan.frameworks:
        import jax

        jax.clear_caches()  # what was compiled serves no other piece; a process may hold only so many programs
    return result


def run(plan: Plan, jobs: int = 2) -> Generator[tuple[int, int, str, Result]]:
    """Judge a plan; after each piece yield (done, of, what, result so far)."""
    result = Result(scope=scope(plan))
    for framework, needs in NEEDS.items():
        absent = [module for module in needs if find_spec(module) is None]
        if framework in plan.frameworks and absent:
            result.skipped[framework] = f"{' and '.join(absent)} not installed; {how_to_install(framework)}"
    plan = replace(plan, frameworks=tuple(f for f in plan.frameworks if f not in result.skipped))
    if plan.device != "cpu":
        for framework in ("torch", "jax"):
            if framework in plan.frameworks and not accelerators(framework):
                result.skipped[framework] = f"{framework} finds no accelerator on this machine"
        found = tuple(f for f in plan.frameworks if f != "numpy" and f not in result.skipped)
        plan = replace(plan, frameworks=found)
    pieces = tasks(plan) if plan.frameworks else []

    def add(done: Result) -> None:
        result.rows.extend(done.rows)
        result.errors.extend(done.errors)
        result.findings.extend(done.findings)
        result.skipped.update(done.skipped)

    if jobs == 1 or len(pieces) < 2:
        for i, piece in enumerate(pieces):
            add(work(piece))
            yield i + 1, len(pieces), " ".join(piece[1:]), result
    else:
        with workers(jobs) as pool:
            futures = {pool.submit(work, piece): piece for piece in pieces}
            for i, future in enumerate(as_completed(futures)):
                add(future.result())
                yield i + 1, len(pieces), " ".join(futures[future][1:]), result
    yield len(pieces), len(pieces), "everything", result
