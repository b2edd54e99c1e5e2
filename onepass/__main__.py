"""The command line, whose commands are in cli/commands.py.

Example: `python -m onepass demo`.
"""

import sys

from .cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
