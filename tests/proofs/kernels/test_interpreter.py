"""Programs side by side do what each does by itself: loops of different lengths, branches, functions."""

import numpy as np
import pytest

from onepass.proofs.kernels.interpreter import Interpreter
from onepass.proofs.kernels.memory import Buffer, KernelFault, Pointer, WrittenTensor

TEXT = """
@triton.jit
def twice(x):
    return x + x

@triton.jit
def kernel(out, rounds, size, TILE: tl.constexpr):
    program = tl.program_id(0)
    total = tl.full([], 0, tl.int32)
    last = tl.full([], 7, tl.int32)
    for n in tl.range(0, program * rounds, 2):
        total = total + twice(n)
        last = n
    if program % 2 == 0:
        total = total + 1000
    else:
        total = -total
    place = tl.arange(0, TILE)
    tl.store(out + program * TILE + place, total + place * last, mask=place < size)
"""


def ran(text=TEXT, programs=5, size=4, most=100, **more):
    buffer = Buffer.made(WrittenTensor("out", "int32", (programs * 4,), (1,), True), 1)
    given = {"out": Pointer(buffer, np.zeros(1, np.int64)), "rounds": np.int32([3]), "size": np.int32([size])}
    given["TILE"] = 4
    Interpreter(text, programs, most).call("kernel", given | more)
    return buffer.data.reshape(programs, 4)


def alone(program):
    total, last = 0, 7
    for n in range(0, program * 3, 2):
        total, last = total + 2 * n, n
    total = total + 1000 if program % 2 == 0 else -total
    return [total + place * last for place in range(4)]


def test_each_program_runs_its_rounds_and_its_branch():
    assert ran().tolist() == [alone(n) for n in range(5)]


def test_a_mask_leaves_out_what_is_not_stored():
    assert ran(size=2)[:, 2:].tolist() == [[0, 0]] * 5


def test_some_programs_run_by_their_numbers():
    buffer = Buffer.made(WrittenTensor("out", "int32", (20,), (1,), True), 1)
    given = {"out": Pointer(buffer, np.zeros(1, np.int64)), "rounds": np.int32([3]), "size": np.int32([4]), "TILE": 4}
    Interpreter(TEXT, np.array([1, 4])).call("kernel", given)
    assert buffer.data.reshape(5, 4)[[1, 4]].tolist() == [alone(1), alone(4)] and not buffer.data[:4].any()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("program * rounds, 2", "1000, 2", "more than 100 rounds"),
        ("total = -total", "total = absent", "absent has no value"),
        ("tl.full([], 7", "tl.sort([], 7", "no meaning for tl.sort"),
        ("place * last", "place[:, None] * last", "more axes"),
        ("last = n", "last: while", None),
    ],
)
def test_what_has_no_meaning_is_named(old, new, said):
    assert old in TEXT
    with pytest.raises(KernelFault if said else SyntaxError, match=said):
        ran(TEXT.replace(old, new))


def test_a_launch_gives_every_parameter():
    with pytest.raises(KernelFault, match="takes size"):
        Interpreter(TEXT, 1).call("kernel", {"out": None, "rounds": 1})
    with pytest.raises(KernelFault, match="no function"):
        Interpreter(TEXT, 1).call("kernel2", {})
