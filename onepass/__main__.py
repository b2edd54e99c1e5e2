"""The door of the command line: `python -m onepass demo`, for example.

The commands are in cli/commands.py.
"""

import sys

from .cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
