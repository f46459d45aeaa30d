"""`python -m parity_tests.sync`: write what is generated; with --check, only say what is stale."""

import sys

from parity_tests.sync.generate import main

sys.exit(main(sys.argv[1:]))
