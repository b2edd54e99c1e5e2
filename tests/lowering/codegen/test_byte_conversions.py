"""Bytes become halves: every byte exactly, by an emulator of the instructions; what they are written for; compiled."""

import re

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.egraph.terms.ops import cast, const, iota, load, make
from onepass.egraph.terms.term import Dim, Tensor
from onepass.graph.trace import program_of
from onepass.lowering.codegen.byte_conversions import HELPERS, MOVABLE, centred_in_halves, helper_of
from onepass.lowering.plan.launch_facts import INTERPRETER, Facts
from onepass.lowering.triton.kernel import emit
from onepass.proofs.kernels.instructions import same_values, values_of_bytes
from onepass.translate.translate import translate
from tests.support.gluon_ahead_of_time import said_apart

BYTES = torch.arange(256, dtype=torch.int64)


def text_in(name):
    """The instructions of a helper."""
    return re.search(r'"(\{\{ .*; \}\})"', HELPERS[name])[1].replace("{{", "{").replace("}}", "}")


def right(name):
    """What float64 has for each byte."""
    name = name.removeprefix(MOVABLE)
    if "bits" in name:
        lowest, count = map(int, re.findall(r"\d+", name)[:2])
        taken = 1 << (count - 1) if name.startswith("centred") else 0
        return (BYTES >> lowest & ((1 << count) - 1)).double() - taken
    return BYTES.to(torch.uint8).view(getattr(torch, name.split("_to_")[0])).double()


@pytest.mark.parametrize("name", HELPERS)
def test_every_byte_is_exact_in_every_place(name):
    assert same_values(values_of_bytes(text_in(name), name.split("_")[-1]), right(name).numpy())


def test_all_numbers_of_eight_bits_have_a_helper():
    assert {"int8_to_bfloat16", "int8_to_float16", "bits_0_8_to_bfloat16", "bits_4_4_to_float16"} <= {*HELPERS}
    assert right("float8_e4m3fn_to_bfloat16").isnan().sum() == 2 and right("int8_to_float16").min() == -128


# What is written


def mod(x, number):
    return make("mod", (x, const(number)))


def floordiv(x, number):
    return make("floordiv", (x, const(number)))

def bytes_of(kind):
    i, j = Dim("i", 64), Dim("j", 64)
    return load(Tensor("x", kind, (64, 64)), iota(i), iota(j))


@pytest.mark.parametrize("machine, kind, name", [
    ("sm_90", "int8", "int8_to_bfloat16"), ("sm_80", "int8", "int8_to_bfloat16"), ("gfx942", "int8", None),
    (INTERPRETER, "int8", None), ("", "int8", None), ("sm_75", "int8", None),
    ("sm_100", "float8_e4m3fn", "float8_e4m3fn_to_bfloat16"), ("sm_80", "float8_e4m3fn", None),
    ("sm_90", "uint8", "bits_0_8_to_bfloat16"), ("sm_90", "int16", None), ("sm_90", "bool", None),
])  # fmt: skip
def test_machines_and_kinds_that_have_the_instructions(machine, kind, name):
    found = helper_of(cast(bytes_of(kind), "bfloat16"), machine)
    assert (found and found[0]) == name


def test_bits_of_a_byte_are_taken_together_with_the_conversion():
    byte = cast(bytes_of("uint8"), "int64")
    name_of = lambda number, half="bfloat16": (helper_of(cast(number, half), "sm_90") or (None,))[0]
    assert name_of(mod(byte, 16)) == "bits_0_4_to_bfloat16"
    assert name_of(floordiv(byte, 16), "float16") == "bits_4_4_to_float16"
    assert name_of(mod(floordiv(byte, 4), 4)) == "bits_2_2_to_bfloat16"
    assert name_of(floordiv(mod(byte, 64), 4)) == "bits_2_4_to_bfloat16"
    for other in (mod(byte, 3), mod(cast(bytes_of("int8"), "int64"), 16), floordiv(byte, 512), byte + byte):
        assert name_of(other) is None
    assert name_of(byte, "float32") is None


def test_half_of_the_range_is_taken_away_with_the_conversion():
    byte = cast(bytes_of("uint8"), "int64")
    less = lambda number, taken, half="bfloat16": cast(cast(number, half), "float32") - const(float(taken))
    name_of = lambda number, half="bfloat16": (helper_of(cast(number, half), "sm_90") or (None,))[0]
    assert name_of(less(mod(byte, 16), 8)) == "centred_bits_0_4_to_bfloat16"
    assert name_of(cast(floordiv(byte, 16), "float32") - const(8.0), "float16") == "centred_bits_4_4_to_float16"
    assert name_of(less(byte, 128)) == "centred_bits_0_8_to_bfloat16"
    for other in (less(mod(byte, 16), 7), less(byte, 8), less(cast(bytes_of("int8"), "int64"), 128)):
        assert name_of(other) is None
    assert centred_in_halves(less(mod(byte, 16), 8)) is cast(less(mod(byte, 16), 8), "bfloat16")
    assert centred_in_halves(cast(mod(byte, 16), "float32") - const(8.0)) is None


def attention(q, k, v):
    k, v = (x.to(q.dtype) for x in (k, v))
    return (q @ k.mT * 0.1).softmax(-1) @ v


def text_of(kind, machine, rows_last=False):
    q, k, v = (torch.zeros(2, n, 64, dtype=d) for n, d in ((16, torch.bfloat16), (256, kind), (256, kind)))
    plan = optimize_all(translate(program_of(attention, q, k, v)).results).plan
    return emit(plan.kernels[0], plan, Facts(frozenset("ij"), machine=machine, rows_last=rows_last)).text


def test_both_operands_of_attention_are_converted_as_they_are_loaded():
    text = text_of(torch.int8, "sm_90")
    assert len(re.findall(r"= int8_to_bfloat16\(\w+_tile\w*\)", text)) == 2 and ".to(tl.int32)" not in text
    assert len(re.findall(r"= summed_int8_to_bfloat16\(", text_of(torch.int8, "sm_100"))) == 2
    assert "inline_asm" not in text_of(torch.int8, "") and "inline_asm" not in text_of(torch.bfloat16, "sm_90")


def test_only_bytes_along_a_sum_are_converted_where_a_product_reads_them():
    text = text_of(torch.int8, "sm_90", rows_last=True)
    assert "= summed_int8_to_bfloat16(k_tile)" in text and "= int8_to_bfloat16(v_tile)" in text
    assert all((", True, 4)" in body) == name.startswith(MOVABLE) for name, body in HELPERS.items())


# Compiled

COMPILED = [[t, k, 64, "bfloat16"] for t, k in (("sm_80", "int8"), ("sm_90", "int8"), ("sm_90", "uint4"))]
COMPILED += [[t, "float8_e4m3fn", 64, "bfloat16"] for t in ("sm_90", "sm_100")]
COMPILED += [["sm_100", kind, 64, "bfloat16"] for kind in ("int8", "uint4")]


@pytest.mark.slow
def test_it_compiles_and_no_byte_is_converted_by_itself():
    said = said_apart("ahead_of_time.py", COMPILED)
    assert not [one for one in said if "error" in one or one["converted"]], said
