"""The command line names its version, and the command that was probably meant."""

import pytest

from onepass import __version__
from onepass.cli.commands import MISUSED, main


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0 and capsys.readouterr().out == f"onepass {__version__}\n"


def test_a_command_that_is_nearly_right_is_named(capsys):
    with pytest.raises(SystemExit) as left:
        main(["explian"])
    assert left.value.code == MISUSED
    assert capsys.readouterr().err.endswith("there is no command 'explian'; did you mean 'explain'?\n")


def test_a_command_that_is_like_none_is_answered_by_all(capsys):
    with pytest.raises(SystemExit) as left:
        main(["zebra"])
    said = capsys.readouterr().err
    assert left.value.code == MISUSED and "invalid choice: 'zebra'" in said and "'doctor'" in said
