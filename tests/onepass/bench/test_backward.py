"""Times of the backward alone: everyone computes the gradients of the problem, and what is wrong is named."""

import pytest
import torch
from torch.nn.attention import SDPBackend

from onepass.bench import backward, problems, results, scales, suites, timing
from tests.onepass.bench.test_suites import CASES, command


def _case(suite, variant):
    return next(c for c in suites.cases(suite, scales.TINY) if c.variant == variant)


VARIANTS = {case.variant: case for case in CASES}


@pytest.mark.sampled(36)
@pytest.mark.parametrize("case", VARIANTS.values(), ids=VARIANTS)
def test_gradients_summed_over_parts_are_those_of_the_whole(case):
    torch.manual_seed(0)
    made = backward.backward(case.make("cpu", torch.float64), "all")
    right = made.expected()
    assert sum(value.abs().sum() for value in right.values[0]) > 0
    with torch.no_grad():
        found = timing.checked(made.way(lambda: lambda: made.problem.plain(*made.problem.arguments))(), right)
    assert found.note == ""


def test_each_way_of_torch_computes_these_gradients(monkeypatch):
    monkeypatch.setattr(problems, "SDPA", {"math": SDPBackend.MATH})
    for variant in ("full", "causal", "gqa8_causal"):
        problem = _case("peers" if variant != "gqa8_causal" else "variants", variant).make("cpu", torch.float32)
        made = backward.backward(problem, "attention")
        assert timing.checked(made.way(problem.ways["sdpa_math"])(), made.expected()).note == "", variant


def test_gradients_of_a_learned_table_are_asked_for_or_not():
    problem = _case("variants", "relative_bias").make("cpu", torch.float32)
    assert len(backward.backward(problem, "attention").leaves) == 3
    assert len(backward.backward(problem, "all").leaves) == 4


def test_a_wrong_gradient_is_named():
    made = backward.backward(_case("peers", "full").make("cpu", torch.float32), "attention")
    wrong = lambda: lambda: made.problem.plain(*made.problem.arguments) * 1.01
    assert timing.measured({"wrong": made.way(wrong)}, made.expected(), 1)["wrong"].note.startswith("wrong: off by")


def test_rows_of_a_backward_stand_beside_those_of_the_forward(tmp_path):
    out, chosen = tmp_path / "rows.csv", ("--suite", "peers", "--variants", "full", "--only", "onepass|eager")
    for more in ((), ("--backward", "attention")):
        assert command(*chosen, "--out", out, *more) == 0
    rows = [row for row in results.read(out) if row.contestant == "onepass"]
    assert [row.suite for row in rows] == ["peers", "peers_backward"]
    assert all(row.ms and row.executor == "tiled" for row in rows)
    assert float(rows[1].tflops) * float(rows[1].ms) == pytest.approx(
        2.5 * float(rows[0].tflops) * float(rows[0].ms), rel=1e-3
    )
