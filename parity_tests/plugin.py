"""The pytest plugin: the fixture `attn_parity` judges an implementation of your own, `--parity-device` says where.

What its verdicts do not tell apart or judge stands at the end of the run; with `--parity-strict` it fails the test. The
plugin comes with the package; importing it loads nothing but pytest.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from parity_tests.kernels.referee import Verdict as KernelVerdict
    from parity_tests.ports.modules import ModuleComparison
    from parity_tests.ports.parity import Verdict

# The names under which a test's report carries what was not told apart and what was not judged, also from another
# process.
UNTESTED = "attn_parity_untested"
UNJUDGED = "attn_parity_unjudged"
OPEN = {
    UNTESTED: "attention: values that the inputs do not tell apart",
    UNJUDGED: "attention: arrays that were not judged, with bounds above their size",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attn-parity")
    group.addoption(
        "--parity-device",
        default="cpu",
        metavar="DEVICE",
        help="where the fixture attn_parity runs what it judges: cpu, or a device of the candidate's framework "
        "(cuda, mps, gpu, tpu); where there is none the test is skipped",
    )
    group.addoption(
        "--parity-strict",
        action="store_true",
        help="a field of the config that the runs of the fixture attn_parity do not determine, or an array that they "
        "do not judge, fails the test, unless it passes strict=False; by default such are listed at the end",
    )


class Judge:
    """`assert_parity` on the device that was asked for.

    Attributes:
        device: the value of `--parity-device`.
        strict: whether `--parity-strict` is given.
        node: the test.
    """

    def __init__(self, device: str, strict: bool, node: pytest.Item) -> None:
        self.device, self.strict, self.node = device, strict, node

    def __call__(self, candidate: Any, variant: str, config: Any = None, **options: Any) -> "Verdict":
        from parity_tests.ports.parity import assert_parity
        from parity_tests.ports.port import MissingDeviceError

        __tracebackhide__ = True  # pytest shows the test and the finding, not the way between them
        given: dict[str, Any] = {"device": self.device, "strict": self.strict} | options
        try:
            verdict = assert_parity(candidate, variant, config, **given)
        except MissingDeviceError as error:
            pytest.skip(str(error))
        for name, parts in ((UNTESTED, verdict.untested), (UNJUDGED, verdict.unjudged)):
            self.node.user_properties += [(name, f"{variant}: {part}") for part in parts]
        return verdict


@pytest.fixture
def attn_parity(request: pytest.FixtureRequest) -> Judge:
    """Judge a module of torch, Flax or Equinox or a function: see `parity_tests.assert_parity`."""
    options = request.config.option
    return Judge(str(options.parity_device), bool(options.parity_strict), request.node)


# The name under which a test's report carries its annotation, also from another process.
ANNOTATION = "attn_parity_annotation"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    """Where a difference fails a test on GitHub, its report carries a line that marks the place on the page."""
    report = yield
    if call.excinfo is not None and type(call.excinfo.value).__module__.startswith("parity_tests."):
        from parity_tests.report import annotations

        if annotations.wanted():
            own = [entry for entry in call.excinfo.traceback if entry.path == item.path]
            line = own[-1].lineno + 1 if own else item.location[1] or 1
            text = annotations.annotation(item.path, line, item.nodeid, str(call.excinfo.value))
            report.user_properties.append((ANNOTATION, text))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what the verdicts of tests that passed do not tell apart or judge; print annotations behind all that a test
    has printed, because they are read at the beginning of a line alone.
    """
    passed = [report for report in terminalreporter.stats.get("passed", ()) if report.when == "call"]
    for kind, title in OPEN.items():
        lines = [f"{r.nodeid}: {text}" for r in passed for name, text in r.user_properties if name == kind]
        if lines:
            terminalreporter.section(title)
        for line in lines:
            terminalreporter.line(line)
    reports = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
    held = [entry for report in reports for entry in getattr(report, "user_properties", ())]  # an import's has none
    for text in [text for name, text in held if name == ANNOTATION]:
        terminalreporter.ensure_newline()
        terminalreporter.line(text)


class DecodingJudge:
    """`assert_decoding_parity` on the device that was asked for.

    Attributes:
        device: the value of `--parity-device`.
    """

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, candidate: Any, variant: str, config: Any = None, **options: Any) -> "Verdict":
        from parity_tests.ports.decoding import assert_decoding_parity
        from parity_tests.ports.port import MissingDeviceError

        __tracebackhide__ = True
        given: dict[str, Any] = {"device": self.device} | options
        try:
            return assert_decoding_parity(candidate, variant, config, **given)
        except MissingDeviceError as error:
            pytest.skip(str(error))


@pytest.fixture
def attn_parity_decoding(request: pytest.FixtureRequest) -> DecodingJudge:
    """Judge steps with a cache of your own: see `parity_tests.assert_decoding_parity`."""
    return DecodingJudge(str(request.config.getoption("--parity-device")))


def compared(a: Any, b: Any, inputs: Any, **options: Any) -> "ModuleComparison":
    """Where two modules part; the test fails, with what is printed of it, where they do."""
    from parity_tests.ports.modules import compare_modules

    __tracebackhide__ = True
    comparison = compare_modules(a, b, inputs, **options)
    if not comparison.agree:
        pytest.fail(str(comparison), pytrace=False)
    return comparison


@pytest.fixture
def attn_parity_modules() -> "Callable[..., ModuleComparison]":
    """Hold a module against another, submodule by submodule: see `parity_tests.compare_modules`."""
    return compared


def kernel(f: Any, like: Any, limits: Any = None, arithmetic: Any = None, **options: Any) -> "KernelVerdict":
    """The verdict on a kernel; the test fails, with what is printed of it, where it differs."""
    from parity_tests.kernels.referee import judge_kernel

    __tracebackhide__ = True
    verdict = judge_kernel(f, like, limits, arithmetic, **options)
    if not verdict.agrees:
        pytest.fail(str(verdict), pytrace=False)
    return verdict


@pytest.fixture
def attn_parity_kernel() -> "Callable[..., KernelVerdict]":
    """Judge an attention kernel by the meaning of a signature: see `parity_tests.assert_kernel`."""
    return kernel
