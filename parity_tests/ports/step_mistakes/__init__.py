"""What goes wrong in steps with a cache: each mistake is made in our own decoding, in every way it is written."""

from parity_tests.ports.step_mistakes.base import StepMistake
from parity_tests.ports.step_mistakes.held import ENTRIES
from parity_tests.ports.step_mistakes.padding import PADDING_MISTAKES
from parity_tests.ports.step_mistakes.positions import POSITIONS
from parity_tests.ports.step_mistakes.states import STATES
from parity_tests.ports.step_mistakes.visible import VIEWS

CACHE_MISTAKES = (*VIEWS, *POSITIONS, *ENTRIES, *STATES)

__all__ = ["CACHE_MISTAKES", "PADDING_MISTAKES", "StepMistake"]
