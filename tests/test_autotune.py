"""Tuning a function's regions: what is tried, what is refused, and that the operator runs the winner that was kept."""

from math import inf

import pytest
import torch

from onepass import autotune, cache, executors, fused, operator, rivals
from onepass.__main__ import UNFINISHED, main
from onepass.runner import Runner
from onepass.trials import Outcome
from onepass.tuner import Trial

pytest.importorskip("sklearn")


def attention(q, k, v):
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


@pytest.fixture
def asked(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    operator.forget()
    inputs = tuple(torch.randn(1, 2, 256, 64) for _ in range(3))
    (found,) = autotune.calls_of(attention, inputs)
    yield found
    operator.forget()


def expected(asked, tensors=None):
    """What the user wrote gives; a region has its tensors in an order of its own."""
    tensors = tensors or asked.tensors
    return executors.original(asked.found, tensors, asked.call)(tensors)[0]


def fake(asked, failing=()):
    """A GPU that runs some settings as fast as predicted, and others not at all."""

    def trial(point):
        if point[0] in failing:
            return Trial(point, "wrong")
        return Trial(point, "ok", autotune.predicted(asked.found.plan, asked.call.sizes, point))

    return trial


def test_a_region_is_met_with_its_tensors(asked):
    assert [tuple(t.shape) for t in asked.tensors] == [(1, 2, 256, 64)] * 3
    (found,) = executors.tiled(asked.found, asked.tensors, asked.call)(asked.tensors)
    torch.testing.assert_close(found, expected(asked))
    assert not isinstance(operator.runner(asked.text), operator._Recording), "recording ends"


def test_only_what_fits_is_in_the_space(asked):
    plan, sizes = asked.found.plan, asked.call.sizes
    both, plain = (autotune.space_of(plan, sizes, gluon) for gluon in (True, False))
    assert {p[0] for p in both} == {"ptr", "gluon"} and {p[0] for p in plain} == {"ptr"}
    assert all(p[3] == p[1] // 16 for p in both if p[0] == "gluon")
    assert all(autotune.predicted(plan, sizes, p) < inf for p in both)


def test_the_winner_is_kept_and_goes_first(asked, monkeypatch):
    history = autotune.tune_call(asked, fake(asked), 8, True)
    best = list(history.best.point)
    assert history.best.time == min(t.time for t in history.trials) and len(history.trials) == 8
    assert cache.read(asked.found.key)["tuned"] == {asked.size: best}
    runner, device, size = Runner(fused.read(asked.text)), torch.device("cuda"), asked.size
    monkeypatch.setattr(rivals, "size_class", lambda *_: size)
    monkeypatch.setattr(executors, "preference", lambda *_: (*executors.KERNELS, "tiled"))
    first, (who, _) = next(iter(runner.order(device, asked.call).items()))
    assert first == f"tuned {best}" and str(best[1]) in who
    assert list(runner.order(torch.device("cpu"), asked.call)) == [*executors.KERNELS, "tiled"]
    monkeypatch.setattr(rivals, "size_class", lambda *_: "other sizes")
    assert list(runner.order(device, asked.call)) == [*executors.KERNELS, "tiled"]


def test_nothing_right_keeps_nothing(asked):
    history = autotune.tune_call(asked, fake(asked, ("ptr", "gluon")), 4, True)
    assert history.best is None and "tuned" not in cache.read(asked.found.key)


def test_a_setting_that_no_longer_runs_is_left(asked, monkeypatch):
    """On this machine no kernel of Triton runs: the call is served by the next in the chain."""
    runner = Runner(fused.read(asked.text))
    prepare = executors.tuned(("gluon", 128, 64, 8, 2, 1, False, False))
    order = {"tuned": ("tuned", prepare), "tiled": ("tiled", executors.tiled)}
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
    ended = autotune.attempt((path, autotune.POINTS[0]))
    assert ended == (Outcome("wrong") if wrong else Outcome("ok", 0.5)) and len(timed) == (not wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what there is without a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert main(["tune", "some.py:function"]) == UNFINISHED
    assert "no GPU" in capsys.readouterr().err
