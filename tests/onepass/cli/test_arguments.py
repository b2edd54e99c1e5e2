"""Every command has its arguments, with a help of each, and none but known commands has any."""

import argparse

import pytest

from onepass.cli.arguments import ARGUMENTS
from onepass.cli.commands import COMMANDS
from onepass.cli.values import CommandParser


def test_only_commands_have_arguments():
    assert set(ARGUMENTS) < {name for name, _, _ in COMMANDS}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_argument_has_a_help_and_a_default_that_its_reader_takes(name):
    parser = CommandParser("onepass")
    ARGUMENTS[name](parser)
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    assert actions and all(action.help for action in actions)
    for action in actions:
        if action.type is not None and action.default not in (None, []):
            assert action.type(str(action.default)) == action.default
