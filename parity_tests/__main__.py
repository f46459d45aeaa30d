"""`python -m parity_tests`: the command attn-parity."""

from parity_tests.commands.app import main

main()
