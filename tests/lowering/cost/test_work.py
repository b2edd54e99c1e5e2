"""What is computed outside of loops is counted by places and by programs."""

import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.lowering.cost.traffic import ProgramTiles
from onepass.lowering.cost.work import clocks
from onepass.lowering.plan.device import H200

LENGTH = 128


def launch_of(function, *inputs, programs: int) -> ProgramTiles:
    (kernel,) = compiled_region.make(program_of(function, *inputs), Options(), (), {}).plan.kernels
    return ProgramTiles(kernel, {}, 32, 32, (0,) * len(kernel.loops), programs, 132)


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def gated(q, k, v, gate):
    return torch.sin(gate) * attention(q, k, v)


def test_a_function_of_the_result_is_counted_for_every_row():
    q, k, v, gate = (torch.empty(2, 3, LENGTH, 16) for _ in range(4))
    programs = 2 * 3 * LENGTH // 32
    plain = clocks(launch_of(attention, q, k, v, programs=programs), H200)
    more = clocks(launch_of(gated, q, k, v, gate, programs=programs), H200)
    assert (more["special"] - plain["special"]) * H200.special == 2 * 3 * LENGTH * 16
    assert more["tensor"] == plain["tensor"] == 0


def test_more_programs_for_the_same_rows_compute_again():
    q, k, v, gate = (torch.empty(2, 3, LENGTH, 16) for _ in range(4))
    once, twice = (clocks(launch_of(gated, q, k, v, gate, programs=n), H200) for n in (24, 48))
    assert twice["special"] == 2 * once["special"] > 0
