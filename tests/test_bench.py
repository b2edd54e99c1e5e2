"""The suites at their smallest: everyone computes the same thing, what fails is a row, and a file is gone on with."""

import argparse
import csv

import pytest
import torch
from torch.nn.attention import SDPBackend

from onepass.__main__ import main
from onepass.bench import problems, results, suites, timing
from onepass.bench.options import SUITES, add_options

CASES = [case for suite in SUITES for case in suites.cases(suite, suites.TINY)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.suite}-{case.variant}-{case.shape}")
def test_every_contestant_computes_the_problem(case, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(problems, "SDPA", {"math": SDPBackend.MATH})
    torch.manual_seed(0)
    problem = case.make("cpu", torch.float32)
    assert 0 < problem.flops <= 6 * problem.elements * problem.arguments[0].shape[-1]
    right = timing.expected(problem)
    ways = {name: way for name, way in problem.ways.items() if name != "fa3"}
    assert {"flex", "flex_max"} <= set(ways) or {"flex_x2", "flex_x2_max"} <= set(ways)
    for name, build in {"plain": lambda: lambda: problem.plain(*problem.arguments), **ways}.items():
        assert timing.checked(build(), right).note == "", name


def test_the_scale_of_the_published_figures():
    shapes = {case.shape for case in suites.cases("peers", suites.GPU)}
    assert {"b16h32s1024d64", "b4h16s4096d128", "b1h8s16384d256"} <= shapes and len(shapes) == 9
    diff = {case.shape for case in suites.cases("flashlight", suites.GPU) if case.variant == "differential"}
    assert {"b8h32s2048d64", "b1h16s16384d128"} <= diff


def test_wrong_and_failing_contestants_are_named_and_not_timed():
    problem = suites.cases("peers", suites.TINY)[0].make("cpu", torch.float32)
    plain = lambda: problem.plain(*problem.arguments)

    def fails():
        raise RuntimeError("no such kernel")

    builders = {"right": lambda: plain, "off": lambda: lambda: plain() * 1.01, "fails": fails, "nan": lambda: nan}
    nan = lambda: plain() / 0.0 * 0.0
    found = timing.measured(builders, timing.expected(problem), rounds=2)
    assert found["right"].ms > 0 and found["right"].note == "" and found["right"].error <= found["right"].allowed
    assert found["off"].ms is None and found["off"].note.startswith("wrong: off by")
    assert found["fails"].note == "RuntimeError: no such kernel"
    assert found["nan"].ms is None and "inf" in found["nan"].note


def command(*words):
    return main(
        ["bench", "--scale", "tiny", "--inner", "eager", "--executor", "tiled", "--rounds", "2", *map(str, words)]
    )


def test_a_run_writes_rows_says_who_ran_and_is_gone_on_with(tmp_path, capsys, monkeypatch):
    out, often = tmp_path / "rows.csv", ("--only", "onepass|eager|sdpa_cudnn")
    assert command("--suite", "peers", "--variants", "causal", "--out", out, *often) == 0
    first = results.read(out)
    assert {row.contestant: row.executor for row in first}["onepass"] == "tiled"
    assert {row.contestant for row in first if row.ms} == {"onepass", "eager"}
    cudnn = next(row for row in first if row.contestant == "sdpa_cudnn")
    assert cudnn.note and cudnn.machine and "torch" in cudnn.versions
    assert command("--suite", "peers", "--out", out, *often) == 0
    rows = results.read(out)
    assert rows[: len(first)] == first and {row.variant for row in rows} == {"full", "causal"}
    printed = capsys.readouterr().out
    assert "times eager (geometric mean over 2 problems)" in printed


def test_ratios_and_means():
    row = lambda variant, name, ms: results.Row("s", variant, "x", name, ms=ms, note="" if ms else "failed")
    rows = [row("a", "onepass", "1"), row("a", "p", "2"), row("a", "q", "4"), row("b", "onepass", "1")]
    rows += [row("b", "p", "8"), row("b", "q", "")]
    assert results.speedups(rows, "s") == {
        "p": (pytest.approx(4), 2),
        "q": (pytest.approx(4), 1),
        "best": (pytest.approx(4), 2),
    }


def test_a_picture_for_each_suite(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [results.Row(s, "full", "x", n, ms="1", tflops="3") for s in ("peers", "variants") for n in ("onepass", "p")]
    written = results.plot(rows, tmp_path / "rows.png")
    assert [path.name for path in written] == ["rows_peers.png", "rows_variants.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in written)


def test_a_file_of_other_columns_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("a", "b"), (1, 2)])
    with pytest.raises(ValueError, match="has columns a, b"):
        results.read(path)


def test_the_command_line_knows_the_scales():
    parser = argparse.ArgumentParser()
    add_options(parser)
    (scales,) = [action.choices for action in parser._actions if action.dest == "scale"]
    assert set(scales) == set(suites.SCALES)
