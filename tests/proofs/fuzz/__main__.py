"""`python -m tests.proofs.fuzz`: see run.py."""

import sys

from tests.proofs.fuzz.run import main

if __name__ == "__main__":
    sys.exit(main())
