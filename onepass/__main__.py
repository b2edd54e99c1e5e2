"""The command line, whose commands are in cli/commands.py.

Example: `python -m onepass demo`.
"""

from .cli.commands import run

if __name__ == "__main__":
    run()
