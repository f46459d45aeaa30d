"""The pytest plugin: the fixture `attn_parity` judges an implementation of your own, `--parity-device` says where.

It comes with the package; importing it loads nothing but pytest.
"""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from parity_tests.ports.parity import Verdict


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("attn-parity").addoption(
        "--parity-device",
        default="cpu",
        metavar="DEVICE",
        help="where the fixture attn_parity runs what it judges: cpu, or a device of the candidate's framework "
        "(cuda, mps, gpu, tpu); where there is none the test is skipped",
    )


class Judge:
    """`assert_parity` on the device that was asked for.

    Attributes:
        device: the value of `--parity-device`.
    """

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, candidate: Any, variant: str, config: Any = None, **options: Any) -> "Verdict":
        from parity_tests.ports.parity import assert_parity
        from parity_tests.ports.port import MissingDeviceError

        __tracebackhide__ = True  # pytest shows the test and the finding, not the way between them
        given: dict[str, Any] = {"device": self.device} | options
        try:
            return assert_parity(candidate, variant, config, **given)
        except MissingDeviceError as error:
            pytest.skip(str(error))


@pytest.fixture
def attn_parity(request: pytest.FixtureRequest) -> Judge:
    """Judge a module of torch, Flax or Equinox or a function: see `parity_tests.assert_parity`."""
    return Judge(str(request.config.getoption("--parity-device")))
