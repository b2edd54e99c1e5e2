"""Instructions on bytes: against torch where it has the type, and refused where they mix bytes or are not known."""

import numpy as np
import pytest
import torch

from onepass.proofs.kernels.instructions import BYTES, INSTRUCTIONS, float8_values, same_values, values_of_bytes
from onepass.proofs.kernels.language import Type, _assembly
from onepass.proofs.kernels.memory import KernelFault
from onepass.proofs.kernels.numbers import of_floats

FLOAT16 = "{ .reg .b16 a, b; mov.b32 {a, b}, $2; cvt.rn.f16x2.e4m3x2 $0, a; cvt.rn.f16x2.e4m3x2 $1, b; }"
PLACED = "{ prmt.b32 $0, $2, 0x64646464, 0x4140; prmt.b32 $1, $2, 0x64646464, 0x4342; }"


@pytest.mark.parametrize("kind, dtype", [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_floats_of_eight_bits_are_those_of_torch(kind, dtype):
    bytes_ = torch.from_numpy(BYTES.astype(np.uint8))
    assert same_values(float8_values(kind), bytes_.view(dtype).double().numpy())


def test_numbers_are_rounded_to_even():
    values = torch.randn(256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values[:4] = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, -0.0, torch.inf])
    words = INSTRUCTIONS["cvt.rn.bf16x2.f32"](values.numpy(), np.zeros(256))
    exact = values.float().bfloat16().view(torch.uint16).numpy()
    assert (words >> 16 == exact).all() and not (words & 0xFFFF).any()


def test_a_table_of_all_bytes():
    assert same_values(values_of_bytes(FLOAT16, "float16"), float8_values("e4m3"))
    assert same_values(values_of_bytes(PLACED, "float16"), 1024.0 + BYTES)


@pytest.mark.parametrize("text, reason", [
    (PLACED.replace("0x4342", "0x4341"), "mixes bytes"),
    (PLACED.replace("0x4342", "0xc342"), "repeats a sign"),
    (PLACED.replace("prmt.b32 $1", "sub.b32 $1"), "the instruction sub.b32"),
    (PLACED.replace("$2, 0x64646464, 0x4140", "%r7, 0x64646464, 0x4140"), "the operand %r7"),
])  # fmt: skip
def test_others_are_refused(text, reason):
    with pytest.raises(KernelFault, match=reason):
        values_of_bytes(text, "float16")


def test_what_a_text_makes_of_a_tile():
    half = Type("float16")
    integers = _assembly(PLACED, "=r,=r,r", [np.array([[-1, 0, 5, -128]], np.int8)], half)
    assert integers.shadow.tolist() == [[1279.0, 1024.0, 1029.0, 1152.0]]
    numbers = of_floats(np.array([[0.5, 3.0]]))
    assert _assembly(FLOAT16, "=r,=r,r", [numbers], half) is numbers
    with pytest.raises(KernelFault, match="change a number"):
        _assembly(PLACED, "=r,=r,r", [numbers], half)
