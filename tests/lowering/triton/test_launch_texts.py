"""The launches of a plan as data are those that run: as many, in order, with every parameter of the text."""

import ast

import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.launch import Launcher
from onepass.lowering.triton.launch_texts import launch_texts
from onepass.translate.translate import translate
from tests.variants import heads


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def masked(q, k, v, mask):
    return torch.softmax(q @ k.mT / 4 + mask, -1) @ v


def plan_of(function, inputs):
    program = program_of(function, *inputs)
    plan = optimize_all(translate(program).results).plan
    return plan, {entry.name: x for entry, x in zip(program.inputs, inputs, strict=True)}


def texts_of(config, **sizes):
    plan, tensors = plan_of(attention, heads(2, rows=37, columns=70))
    return launch_texts(Launcher(plan, config), tensors, sizes), tensors


def test_every_parameter_of_the_text_is_given_once():
    for chunks in (1, 3):
        (one,), tensors = texts_of(TritonConfig(16, 32, 4, 1, chunks))
        made = {name for name, *_ in one.made}
        for call in one.calls:
            (function,) = [f for f in ast.parse(call.text).body if getattr(f, "name", "") == call.function]
            given = [*call.pointers, *call.integers, *call.constants]
            assert given == [a.arg for a in function.args.args]
            assert {*call.pointers.values()} <= {*tensors} | made
            assert all(isinstance(n, int) for n in (*call.integers.values(), *call.constants.values()))


def test_split_loops_are_launches_of_one_kernel():
    (one,), _ = texts_of(TritonConfig(16, 32, 4, 1, 3))
    assert [call.function for call in one.calls] == ["kernel0_parts", "kernel0_merged"]
    assert one.kernel.name == "kernel0" and [name for name, *_ in one.made][-1] == "output"
    assert one.calls[0].programs == 2 * 3 * 3 and one.calls[0].integers["part_size"] == 3


def test_sums_along_diagonals_have_a_launch_of_their_own():
    from tests.support.backwards import backward_of
    from tests.variants import every

    (variant,) = [v for v in every() if v.name == "relative bias"]
    plan = backward_of(variant.function, *(x.requires_grad_(x.is_floating_point()) for x in variant.inputs()))
    tensors = {t.name: torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in plan.inputs}
    texts = launch_texts(Launcher(plan, TritonConfig(32, 32, 4, 1, 1)), tensors, {})
    (added,) = [call for one in texts for call in one.calls if call.function == "add_slots"]
    assert {"rows": added.constants["ROWS"], "columns": added.constants["COLUMNS"]} == {"rows": 32, "columns": 32}
    assert added.pointers["slots"] == f"{added.pointers['sums']} slots"
