"""Reads at affine places as reads of views: what a view is, what has none, and that plans of views compute the same."""

import pytest
import torch

import onepass.lowering.executors as executors
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.executors import EXECUTORS
from onepass.lowering.launch import relayout
from onepass.lowering.launch.affine_views import with_views
from onepass.translate.translate import translate
from tests.support.on_hopper import pretend_hopper

ROWS, WIDTH = 24, 16


def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def shifted(q, k, v):
    """Keys of the row before, zeros for the first one: a guarded place outside of the tensor."""
    return attend(q, torch.nn.functional.pad(k, (0, 0, 1, 0))[..., :-1, :], v)


PROGRAMS = {
    "steps": (lambda x, y: attend(x[..., ::2], y[:, :, 1::3, 1::2], y[:, :, ::3, ::2]), 3),
    "places": (lambda x, y: attend(*(t[..., ::2] for t in (x[:, 0], x[:, 1], y[:, 2, 5 : 5 + ROWS]))), 3),
    "packed": (lambda x, y: attend(*x.unflatten(-1, (-1, 2)).unbind(-1), y[:, :, :ROWS, 3 : 3 + WIDTH]), 3),
    "whole": (lambda x, y: attend(x, x, x), 0),
    "outside": (lambda x, y: shifted(x[..., :5], x[..., 5:10], x), 2),
    "by data": (lambda x, y: attend(x, x[:, :, torch.arange(ROWS).flip(0) % 7], x), 0),
}


def planned(name):
    torch.manual_seed(0)
    function, count = PROGRAMS[name]
    inputs = [torch.randn(2, 3, ROWS, 2 * WIDTH), torch.randn(2, 3, 3 * ROWS, 2 * WIDTH)]
    program = program_of(function, *inputs)
    given = {entry.name: dict(zip("xy", inputs))[entry.name] for entry in program.inputs if entry.name in "xy"}
    return optimize_all(translate(program).results).plan, given, function(*(x.double() for x in inputs)), count


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_view_has_what_is_read(name):
    plan, given, _, count = planned(name)
    viewed, views = with_views(plan, tuple(given), {})
    assert len(views) == count and (views or viewed is plan)
    for view in views:
        tensor = [*given.values()][view.place]
        found = view.of(tensor)
        assert found.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        assert found.shape == view.sizes and view.load.dims == view.read.dims
    assert {t.name for t in viewed.inputs} == {t.name for kernel in viewed.kernels for t in kernel.inputs} - {
        s.output.name for kernel in viewed.kernels for s in kernel.stores
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name, (_, count) in PROGRAMS.items() if count])
@pytest.mark.parametrize("copies", [False, True])
def test_a_plan_of_views_computes_the_same(name, copies, monkeypatch):
    """By Triton's kernels: a stand-in for Hopper's tensor maps asks for views, and for copies of them."""
    plan, given, exact, _ = planned(name)

    def by_maps(plan, tensors, sizes, device):
        views = [name for name in tensors if name.startswith("view")]
        last = {view: tensors[view].dim() - 1 if copies else None for view in views}
        return {kernel.name: last for kernel in plan.kernels} if views else {}

    monkeypatch.setattr(relayout, "MIN_WASTED_BYTES", 1)
    monkeypatch.setattr(relayout, "MIN_READS", 0)
    monkeypatch.setattr(EXECUTORS["triton"], "_by_tensor_maps", by_maps, raising=False)
    if not torch.cuda.is_available():
        monkeypatch.setattr(executors, "interpreter_wanted", lambda: True)
    ready = EXECUTORS["triton"].prepare(plan, given, {})
    other = {name: tensor * 0.5 for name, tensor in given.items()}
    ready.run([*other.values()])
    (result,) = ready.run([*given.values()])
    torch.testing.assert_close(result.double(), exact, atol=1e-5, rtol=1e-5)
    assert len([note for note in ready.notes if "is copied" in note]) == (len(PROGRAMS) and copies * PROGRAMS[name][1])


@pytest.mark.parametrize("name, has_views", [("steps", True), ("whole", False)])
def test_hopper_reads_views_where_it_then_has_maps(name, has_views, monkeypatch):
    pretend_hopper(monkeypatch)
    monkeypatch.setattr(relayout, "MIN_WASTED_BYTES", 1)
    function, _ = PROGRAMS[name]
    inputs = [torch.randn(2, 3, 384, 128).bfloat16(), torch.randn(2, 3, 3 * 384, 128).bfloat16()]
    program = program_of(function, *inputs)
    plan = optimize_all(translate(program).results).plan
    given = {entry.name: dict(zip("xy", inputs))[entry.name] for entry in program.inputs}
    found = EXECUTORS["gluon"]._in_order(plan, given, {}, None)
    assert bool(found.views) == has_views == bool(found.copies)
    read = dict(zip(found.names, found.given(given)))
    (axes,) = EXECUTORS["gluon"]._by_tensor_maps(found.plan, read, {}, inputs[0].device).values()
    assert axes and axes == dict.fromkeys(axes)
