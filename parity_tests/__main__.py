"""`python -m parity_tests`: the command attn-parity."""

from parity_tests.cli import main

main()
