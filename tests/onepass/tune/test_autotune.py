"""Tuning a function's regions: what is tried, what is refused, and that the operator runs the winner that was kept."""

from math import inf

import pytest
import torch

from onepass import process_state
from onepass.cli import commands
from onepass.cli.commands import MISUSED, main
from onepass.compiler import compiled_region, disk_cache
from onepass.lowering.executors import KERNELS
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.schedule.setting_values import HOPPER_ONLY, NAMES, SEARCHED
from onepass.runtime import executors, library_choice, operator
from onepass.runtime.runner import Runner
from onepass.tune import autotune
from onepass.tune.bayesian_search import Trial
from onepass.tune.kernel_space import configuration, point, predicted, space_of
from onepass.tune.trial_process import Outcome
from tests.support.attention_terms import attention as example


def attention(q, k, v):
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


@pytest.fixture
def asked(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    process_state.forget("runners", "regions")
    inputs = tuple(torch.randn(1, 2, 256, 64) for _ in range(3))
    (found,) = autotune.calls_of(attention, inputs)
    yield found
    process_state.forget("runners", "regions")


def expected(asked, tensors=None):
    """What the user wrote gives; a region has its tensors in an order of its own."""
    tensors = tensors or asked.tensors
    return executors.original(asked.found, tensors, asked.call)(tensors)[0]


def fake(asked, failing=()):
    """A GPU that runs some settings as fast as predicted, and others not at all."""

    def trial(point):
        if point[0] in failing:
            return Trial(point, "wrong")
        return Trial(point, "ok", predicted(asked.found.plan.kernels, configuration(point), asked.call.sizes))

    return trial


def test_a_region_is_met_with_its_tensors(asked):
    assert [tuple(t.shape) for t in asked.tensors] == [(1, 2, 256, 64)] * 3
    (found,) = executors.EXECUTORS["tiled"](asked.found, asked.tensors, asked.call)(asked.tensors)
    torch.testing.assert_close(found, expected(asked))
    assert not isinstance(operator.runner(asked.text), operator._Recording), "recording ends"


def test_only_what_fits_is_in_the_space(asked):
    kernels, sizes = asked.found.plan.kernels, asked.call.sizes
    both, plain = (space_of(kernels, sizes, executors) for executors in (("triton", "gluon"), ("triton",)))
    assert {p[0] for p in both} == {"triton", "gluon"} and {p[0] for p in plain} == {"triton"}
    assert all(p[3] == p[1] // 16 for p in both if p[0] == "gluon")
    assert all(predicted(kernels, configuration(p), sizes) < inf for p in both)


@pytest.fixture(scope="module")
def points():
    """Of a warp-specialised kernel."""
    case = example((1, 8), 4096, 4096, 64, dtype="bfloat16")
    return set(space_of(build_plan(case.term, case.output, case.order).kernels, {}, ("gluon",)))


def test_every_setting_that_a_schedule_declares_is_searched(points):
    """Each by points that differ in it alone; the tile's own three by their values."""
    for name in HOPPER_ONLY:
        at = NAMES.index(name)
        seen = {}
        for p in points:
            seen.setdefault((*p[:at], *p[at + 1 :]), set()).add(p[at])
        most = max(map(len, seen.values()))
        # 64 columns leave at once, or in parts of 64. The kernel says whether another warpgroup adds up columns.
        assert most == {"send": 2, "value_warpgroups": 1}.get(name, len(HOPPER_ONLY[name])), name
    for name, part in (("row_tile", "consumers"), ("loop_tile", "loop_tile"), ("stages", "stages")):
        assert len({p[NAMES.index(name)] for p in points}) == len(SEARCHED[part]), name


def test_kernels_that_are_alike_are_one_point(points):
    found = [configuration(p) for p in points]
    assert all(c.row_buffers > 1 for c in found if c.chained), "without a second buffer nothing is read ahead"
    assert {c.send for c in found} == {256, 0}
    assert all(isinstance(c, HopperConfig) and c.terminates for c in found)


def test_the_winner_is_kept_and_goes_first(asked, monkeypatch):
    history = autotune.tune_call(asked, fake(asked), 8, True)
    best = dict(zip(NAMES, history.best.point))
    assert history.best.time == min(t.time for t in history.trials) and len(history.trials) == 8
    assert disk_cache.read(asked.found.key)["tuned"] == {asked.size: best}
    runner, device, size = Runner(compiled_region.read(asked.text)), torch.device("cuda"), asked.size
    monkeypatch.setattr(library_choice, "size_class", lambda *_: size)
    monkeypatch.setattr(executors, "preference", lambda *_: (*KERNELS, "tiled"))
    first, (who, _) = next(iter(runner.order(device, asked.call).items()))
    assert first == who and all(f"{name} {value}" in who for name, value in best.items())
    assert list(runner.order(torch.device("cpu"), asked.call)) == [*KERNELS, "tiled"]
    monkeypatch.setattr(library_choice, "size_class", lambda *_: "other sizes")
    assert list(runner.order(device, asked.call)) == [*KERNELS, "tiled"]


def test_nothing_right_keeps_nothing(asked):
    history = autotune.tune_call(asked, fake(asked, ("triton", "gluon")), 4, True)
    assert history.best is None and "tuned" not in disk_cache.read(asked.found.key)


def test_a_setting_that_no_longer_runs_is_left(asked, monkeypatch):
    """On this machine no kernel of Triton runs: the call is served by the next in the chain."""
    runner = Runner(compiled_region.read(asked.text))
    prepare = executors.tuned({"executor": "gluon", "row_tile": 128, "loop_tile": 64, "warps": 8, "stages": 2})
    order = {"tuned": ("tuned", prepare), "tiled": ("tiled", executors.EXECUTORS["tiled"])}
    monkeypatch.setattr(runner, "order", lambda *_: order)
    (result,) = runner(asked.tensors, asked.numbers)
    torch.testing.assert_close(result, expected(asked))
    assert runner.broken == {"tuned"} and runner.ran == "tiled"


@pytest.mark.parametrize("wrong", [False, True])
def test_a_wrong_result_is_never_timed(asked, monkeypatch, tmp_path, wrong):
    timed = []
    monkeypatch.setattr(autotune, "_seconds", lambda *_: timed.append(1) or 0.5)
    run = lambda given: [expected(asked, given) + 0.5 * wrong]
    monkeypatch.setattr(executors, "tuned", lambda point: lambda *_: run)
    path = str(tmp_path / "call.pt")
    torch.save({"text": asked.text, "tensors": asked.tensors, "numbers": asked.numbers}, path)
    ended = autotune.attempt((path, point(TritonConfig(64, 32, 4, 1))))
    assert ended == (Outcome("wrong") if wrong else Outcome("ok", 0.5)) and len(timed) == (not wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what there is without a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert main(["tune", "some.py:function"]) == MISUSED
    assert "no GPU" in capsys.readouterr().err


def test_without_scikit_learn_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert main(["tune", "some.py:function"]) == MISUSED
    assert "pip install scikit-learn" in capsys.readouterr().err
