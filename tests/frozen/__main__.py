"""`python -m tests.frozen`: see records.py."""

import sys

from tests.frozen.records import main

if __name__ == "__main__":
    sys.exit(main())
