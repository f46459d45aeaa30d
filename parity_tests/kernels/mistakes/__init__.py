"""Mistakes that kernels really have, planted in the simulated ones: what the referee must see, and can name."""

from parity_tests.kernels.mistakes import recurrent, softmax

MISTAKES = softmax.MISTAKES + recurrent.MISTAKES
