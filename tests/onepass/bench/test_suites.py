"""The suites at their smallest: everyone computes the same thing, what fails is a row, and a file is gone on with."""

import argparse
import csv

import pytest
import torch
from torch.nn.attention import SDPBackend

from onepass.bench import flex_variants, problems, results, scales, suites, timing
from onepass.cli.bench_options import SUITES, add_options
from onepass.cli.commands import main

CASES = [case for suite in SUITES for case in suites.cases(suite, scales.TINY)]


@pytest.mark.sampled(35)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.suite}-{case.variant}-{case.shape}")
def test_every_contestant_computes_the_problem(case, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(problems, "SDPA", {"math": SDPBackend.MATH})
    torch.manual_seed(0)
    problem = case.make("cpu", torch.float32)
    assert problem.flops > 0
    right = timing.expected(problem)
    ways = {name: way for name, way in problem.ways.items() if name != "fa3"}
    if case.suite != "beyond" and case.variant != "latent_decode":
        assert problem.flops <= 6 * problem.elements * problem.arguments[0].shape[-1]
        assert {"flex", "flex_max"} <= set(ways) or {"flex_x2", "flex_x2_max"} <= set(ways)
    for name, build in {"plain": lambda: lambda: problem.plain(*problem.arguments), **ways}.items():
        assert timing.checked(build(), right).note == "", name


def test_the_scale_of_the_published_figures():
    shapes = {case.shape for case in suites.cases("peers", scales.GPU)}
    assert {"b16h32s1024d64", "b4h16s4096d128", "b1h8s16384d256"} <= shapes and len(shapes) == 9
    diff = {case.shape for case in suites.cases("flashlight", scales.GPU) if case.variant == "differential"}
    assert {"b8h32s2048d64", "b1h16s16384d128"} <= diff


def test_pairs_are_counted_over_batch_and_heads():
    """Against the scores that the plain spelling leaves finite."""
    shape = problems.Shape(2, 4, 64, 16)
    for name, variant in flex_variants.variants(scales.TINY).items():
        if variant.mask_mod is None or variant.group > 1:
            continue
        extra = variant.extra(shape, "cpu", torch.float32)
        kept = torch.isfinite(variant.edit(torch.zeros(2, 4, 64, 64), *extra)).sum().item()
        assert problems._pairs(variant, shape, extra, "cpu") == kept, name


def test_wrong_and_failing_contestants_are_named_and_not_timed():
    problem = suites.cases("peers", scales.TINY)[0].make("cpu", torch.float32)
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
    assert "onepass ran its own kernels only" in printed


def test_all_suites_are_of_one_file(tmp_path):
    out, few = tmp_path / "rows.csv", ("--shapes", "d16$", "--variants", "^(full|softcap|differential)$")
    assert command("--suite", "all", "--only", "onepass", "--out", out, *few) == 0
    assert {row.suite for row in results.read(out)} == {"peers", "variants", "beyond", "flashlight"}


def test_who_is_slow_is_timed_in_one_round(monkeypatch):
    taken = {"fast": 1.0, "slow": 21.0, "middle": 19.0}

    class Clock:
        def median(self, call, runs):
            return taken[call()]

    monkeypatch.setattr(timing, "_Cpu", Clock)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = timing.in_turns({name: lambda name=name: name for name in taken}, 3, {})
    assert {name: len(times) for name, times in found.items()} == {"fast": 3, "slow": 1, "middle": 3}


def test_several_results_are_compared_each_at_its_own_size():
    """An error that is small beside one result and large beside another."""
    (case,) = [c for c in suites.cases("beyond", scales.TINY) if c.variant == "log_sum_exp"]
    problem = case.make("cpu", torch.float32)
    right = timing.expected(problem)
    value, total = problem.plain(*problem.arguments)
    assert timing.checked(lambda: (value, total), right).note == ""
    assert timing.checked(lambda: (value, total + 0.01), right).note.startswith("wrong: off by 0.01")


def test_the_closing_table_has_a_row_for_each_variant_and_their_mean():
    row = lambda variant, shape, name, ms, **more: results.Measurement("s", variant, shape, name, ms=ms, **more)
    rows = [row("a", "x", "onepass", "1", peak_mib="3"), row("a", "y", "onepass", "1", peak_mib="5")]
    rows += [row("a", "x", "flex_max", "2"), row("a", "y", "flex_max", "8"), row("b", "x", "onepass", "1")]
    rows += [row("b", "x", "sdpa_cudnn", "3"), row("b", "x", "sdpa_flash", "4"), row("b", "x", "flex_x2_max", "4")]
    made = results.ratios(rows)
    columns = {column.header: list(column.cells) for column in made.columns}
    assert columns["variant"] == ["a", "b", "geometric mean"]
    assert columns["flex_max"] == ["4 (2)", "4 (4)", "4 (2)"]
    assert columns["best SDPA"] == ["-", "3 (3)", "3 (3)"]
    assert columns["peak MiB"] == ["5.0", "", "5.0"] and "compile" not in columns


def test_ratios_and_means():
    row = lambda variant, name, ms: results.Measurement("s", variant, "x", name, ms=ms, note="" if ms else "failed")
    rows = [row("a", "onepass", "1"), row("a", "p", "2"), row("a", "q", "4"), row("b", "onepass", "1")]
    rows += [row("b", "p", "8"), row("b", "q", "")]
    assert results.speedups(rows, "s") == {
        "p": (pytest.approx(4), 2),
        "q": (pytest.approx(4), 1),
        "best": (pytest.approx(4), 2),
    }


def test_a_picture_for_each_suite(tmp_path):
    pytest.importorskip("matplotlib")
    row = lambda suite, name: results.Measurement(suite, "full", "x", name, ms="1", tflops="3")
    rows = [row(suite, name) for suite in ("peers", "variants") for name in ("onepass", "p")]
    written = results.plot(rows, tmp_path / "rows.png")
    assert [path.name for path in written] == ["rows_peers.png", "rows_variants.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in written)


def test_a_file_of_other_columns_is_refused(tmp_path, capsys):
    path = tmp_path / "other.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("a", "b"), (1, 2)])
    with pytest.raises(ValueError, match="has columns a, b"):
        results.read(path)
    assert command("--suite", "peers", "--out", path) == 2
    assert f"onepass bench: {path} has columns a, b" in capsys.readouterr().err
    with pytest.raises(SystemExit) as refused:
        command("--suite", "peers", "--shapes", "(")
    assert refused.value.code == 2
    assert "--shapes" in capsys.readouterr().err


def test_the_command_line_knows_the_scales():
    parser = argparse.ArgumentParser()
    add_options(parser)
    (known,) = [action.choices for action in parser._actions if action.dest == "scale"]
    assert set(known) == set(scales.SCALES)
