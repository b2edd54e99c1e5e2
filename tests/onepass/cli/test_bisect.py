"""bisect names the rule that makes numbers wrong, by leaving out parts and laws; without a difference it says so."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.cli import bisect
from onepass.cli.bisect import EagerComparison, candidates
from onepass.cli.commands import main
from onepass.cli.inputs import TargetFunction
from onepass.compiler.options import Options
from onepass.errors import OptionError
from tests.support.wrong_rule import written

pytestmark = pytest.mark.usefixtures("fresh")
INPUTS = tuple(torch.randn(1, 2, 40, 16, generator=torch.Generator().manual_seed(0)) for _ in range(3))


@pytest.fixture
def file(tmp_path):
    return written(tmp_path)


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 8, -1) @ v


def test_the_wrong_rule_is_named(file, capsys, monkeypatch):
    monkeypatch.setattr(bisect, "PARTS", {"Inductor around": {"inner": "eager"}})
    assert main(["bisect", f"{file}:attention", "--rules", str(file), "--option", "inner=eager"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == (
        "laws without which the difference goes away: rule tanh_is_nothing"
    )
    assert "without onepass: gone" in said.err and "without law rescale_sum: still there" in said.err


def test_without_a_difference_nothing_is_tried(file, capsys):
    assert main(["bisect", f"{file}:attention", "--option", "inner=eager"]) == 0
    said = capsys.readouterr()
    assert "no difference in numbers was found" in said.out and "without" not in said.err


def test_every_law_that_was_used_is_a_candidate():
    options = {"inner": "eager"}
    assert not EagerComparison(TargetFunction(attention, INPUTS)).outcome(options).differs
    found = dict(candidates(options))
    assert {"law rescale_sum", "law divisor_out_of_sum"} <= set(found)
    assert found["law rescale_sum"] == {"inner": "eager", "without": ["rescale_sum"]}


@pytest.mark.parametrize("law", ["divisor_out_of_sum", "rescale_sum"])
def test_without_a_law_the_result_is_right_and_the_law_is_not_used(law):
    run = torch.compile(attention, backend=onepass_backend, options={"inner": "eager", "without": [law]})
    torch.testing.assert_close(run(*INPUTS), attention(*INPUTS), rtol=1e-5, atol=1e-5)
    used = {step.rule for report in bisect.reports() for region in report.regions for step in region.derivation}
    assert law not in used


def test_a_law_that_is_none_is_refused():
    with pytest.raises(OptionError, match="which is no law of onepass; did you mean 'rescale_sum'"):
        Options.read({"without": ["rescale_sums"]})
    with pytest.raises(OptionError, match="is a list of names"):
        Options.read({"without": "rescale_sum"})
    assert Options.from_carried(Options(without=("rescale_sum",)).carried()).without == ("rescale_sum",)
    assert Options(without=("rescale_sum",)).digest() != Options().digest()


def test_a_slower_program_is_a_difference_in_speed(monkeypatch):
    comparison = EagerComparison(TargetFunction(attention, INPUTS), "speed")
    monkeypatch.setattr(bisect, "_seconds", lambda call: comparison.seconds * 3)
    assert comparison.judged(TargetFunction(attention, INPUTS)).said == "3.00 times eager's time"
    assert comparison.judged(TargetFunction(attention, INPUTS)).differs


@pytest.mark.parametrize("changed", [lambda x: x * 1.01, lambda x: x / 0, lambda x: x * float("nan"), lambda x: x[:0]])
def test_what_differs_is_seen(changed):
    comparison = EagerComparison(TargetFunction(attention, INPUTS))
    assert comparison.judged(TargetFunction(lambda *given: changed(attention(*given)), INPUTS)).differs
    assert not comparison.judged(TargetFunction(lambda *given: attention(*given) * (1 + 1e-7), INPUTS)).differs
