"""minify keeps only what still fails; the file that it writes runs alone, and differs as the whole program did."""

import runpy

import pytest
import torch

from onepass.cli.bisect import EagerComparison
from onepass.cli.commands import main
from onepass.cli.inputs import TargetFunction
from onepass.cli.target import rules_of
from tests.support.wrong_rule import written

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def file(tmp_path):
    return written(tmp_path)


def test_what_is_left_still_differs(file, tmp_path, capsys):
    small = tmp_path / "small.py"
    assert main(["minify", f"{file}:attention", "--rules", str(file), "--out", str(small)]) == 1
    assert "4 calls" in capsys.readouterr().out
    names = runpy.run_path(str(small))
    text = small.read_text()
    assert "tanh" in text and "cos" not in text
    called = TargetFunction(names["program"], names["example_inputs"]())
    options = {"inner": "eager"}
    assert EagerComparison(called).outcome({**options, "rules": rules_of(str(file))}).differs
    assert not EagerComparison(called).outcome(options).differs


def test_a_program_without_a_difference_is_not_written(file, tmp_path, capsys):
    small = tmp_path / "small.py"
    assert main(["minify", f"{file}:attention", "--out", str(small)]) == 0
    assert "no difference was found" in capsys.readouterr().out and not small.exists()


def test_inputs_of_integers_are_made_again(tmp_path):
    from onepass.cli.minify import smallest, text_of

    table = torch.randn(2, 16)
    gather = lambda x, i: x + table[i]
    assert smallest(TargetFunction(gather, (torch.randn(8, 16), torch.ones(8, dtype=torch.long))), {}) is None
    graph = torch.fx.symbolic_trace(lambda x, i: x[i])
    assert "torch.randint(0, 2, (8,)" in text_of(graph, [torch.randn(8, 16), torch.ones(8, dtype=torch.long)], "a:f")
