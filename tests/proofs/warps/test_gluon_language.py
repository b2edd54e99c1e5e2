"""Functions of Gluon and device functions: the meanings of those that are instructions, and that none is left out."""

import ast

import numpy as np
import pytest

from onepass.lowering.plan.kernel_texts import imported
from onepass.proofs.kernels import numbers as exact
from onepass.proofs.kernels.interpreter import Interpreter
from onepass.proofs.kernels.memory import Buffer, KernelFault, Pointer, WrittenTensor
from onepass.proofs.warps.gluon_interpreter import CALLS, EFFECTS
from onepass.proofs.warps.gluon_language import (
    DEVICE_FUNCTIONS,
    GLUON_FUNCTIONS,
    CopyWindow,
    places_of_registers,
)

MODULES = ("gluon.device_functions", "gluon.device_math", "joined.device_functions", "joined.diagonal_adds")
EXACT = exact.of_floats


def test_every_device_function_with_instructions_has_a_meaning():
    texts = imported("\n".join(f"from onepass.lowering.{name} import x" for name in MODULES))
    functions = [f for text in texts for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)]
    device = [f for f in functions if any(ast.unparse(d) == "gluon.jit" for d in f.decorator_list)]
    inside = {f.name for f in device if "inline_asm" in ast.unparse(f)}
    known = {*DEVICE_FUNCTIONS, *CALLS, *EFFECTS}
    assert len(inside) > 20 and inside <= known
    assert {*DEVICE_FUNCTIONS} - inside == {"counted", "narrow_operand"}  # by the bits of numbers


def test_a_window_reads_zeros_outside_and_writes_nothing_there():
    buffer = Buffer.of("x", np.arange(12.0).reshape(3, 4), (4, 1))
    window = CopyWindow(buffer, (3, 3), (4, 1), (2, 2), 2)
    assert window.bytes == 8
    assert window.read([2, np.array([0])]).shadow.tolist() == [[8, 9], [0, 0]]
    assert window.read([-1, 0]).shadow.tolist() == [[0, 0], [0, 1]]
    with pytest.raises(KernelFault, match="2 axes has 1"):
        window.read([0])
    with pytest.raises(KernelFault, match="multiple of 16 bytes"):
        window.read([0, 2])
    buffer = Buffer.made(WrittenTensor("out", "float32", (3, 4), (4, 1)), 4)
    CopyWindow(buffer, (3, 3), (4, 1), (2, 2), 2).write([2, 0], EXACT(np.ones((2, 2))))
    assert buffer.written.sum() == 2 and buffer.written[8] and buffer.written[9]


def test_tiles_are_joined_split_and_spread():
    a = EXACT(np.arange(4.0).reshape(1, 4))
    joined = GLUON_FUNCTIONS["join"](a, a)
    left, right = GLUON_FUNCTIONS["split"](joined)
    assert joined.shape == (1, 4, 2) and left.shadow.tolist() == right.shadow.tolist() == a.shadow.tolist()
    both = GLUON_FUNCTIONS["broadcast"](a, EXACT(np.ones((1, 3, 1))))
    assert [x.shape for x in both] == [(1, 3, 4), (1, 3, 4)]
    with pytest.raises(KernelFault):
        GLUON_FUNCTIONS["split"](EXACT(np.ones((1, 3))))


def test_registers_lie_in_memory_as_the_last_kernel_reads_them():
    """The places of `add_in_order`, and `in_rows` of lowering/joined/finish.py, which is run from its text."""
    (text,) = imported("from onepass.lowering.joined.finish import in_rows")
    for columns in (16, 32, 64):
        x = EXACT(np.arange(64.0 * columns).reshape(1, 64, columns))
        buffer = Buffer.of("sums", np.zeros(64 * columns), (1,))
        places = places_of_registers(Pointer(buffer, np.zeros(1, np.int64)), x)
        memory = np.zeros(64 * columns)
        memory[places] = x.shadow[0]
        lines = Interpreter(text, 1)
        found = lines._inlined("in_rows", [EXACT(memory[None]), columns, 1])
        assert found.shadow.tolist() == x.shadow.tolist()


def test_sums_along_diagonals_are_added_at_column_minus_row():
    for sign, first in ((1, 2), (-1, 3)):
        zero = exact.Numbers(np.zeros((exact.LEVELS, 6), np.int64), np.zeros(6))
        buffer = Buffer("table", zero, np.ones(6, bool), exact.LEVELS)
        DEVICE_FUNCTIONS["add_diagonals"](Pointer(buffer, np.array([first])), EXACT(np.ones((1, 3, 4))), sign)
        wanted = [1, 2, 3, 3, 2, 1]
        assert buffer.data.shadow.tolist() == wanted[::sign]


def test_special_functions_have_their_values():
    x = EXACT(np.array([[[-1.5, 0.0, 0.75]]]))
    value = lambda name, *args: DEVICE_FUNCTIONS[name](x, *args).shadow[0, 0]
    assert np.allclose(value("bounded_weights", 2.0, 0.5, 4, True), np.exp2(x.shadow[0, 0] * 0.5 - 2))
    assert np.allclose(value("capped_weights", 0.5, 2.0, 3.0, 4, 8), np.exp2(np.tanh(x.shadow[0, 0] * 0.5) * 3 - 2))
    assert np.allclose(value("logistic_of", -1.0, 0.5, 4), 1 / (1 + np.exp2(0.5 - x.shadow[0, 0])))
    assert np.allclose(value("coarse_tangent"), np.tanh(x.shadow[0, 0]))
    rows = EXACT(np.array([[2.0]]))
    assert DEVICE_FUNCTIONS["rescaled"](x, rows).shadow.tolist() == [[[-3.0, 0.0, 1.5]]]
    with pytest.raises(KernelFault, match="no float of its own"):
        DEVICE_FUNCTIONS["counted"](np.array([[1 << 23]]))
