"""`python -m tests.fuzz`: see run.py."""

import sys

from tests.fuzz.run import main

if __name__ == "__main__":
    sys.exit(main())
