"""The language's functions: shapes, roundings of integers, and what the language refuses."""

import numpy as np
import pytest

from onepass.lowering.codegen.ops import FOLDS, HELPERS, TEMPLATES
from onepass.proofs.kernels import numbers as exact
from onepass.proofs.kernels.language import FUNCTIONS, Type, binary, unary
from onepass.proofs.kernels.memory import KernelFault

I32 = lambda *values: np.array(values, np.int32)


def test_every_function_that_texts_call_is_there():
    import re

    texts = [*TEMPLATES.values(), *HELPERS.values(), *(f.combine for f in FOLDS.values())]
    called = {name for text in texts for name in re.findall(r"\{lang\}\.(\w+)\(", text)}
    assert called - {"static_range"} <= {*FUNCTIONS}


def test_integers_are_divided_towards_0_and_overflow():
    assert binary("FloorDiv", I32(-7, 7), I32(2, 2)).tolist() == [-3, 3]
    assert binary("Mod", I32(-7, 7), I32(2, 2)).tolist() == [-1, 1]
    assert binary("Mult", I32(2**30), I32(4)).tolist() == [0]
    with pytest.raises(KernelFault):
        binary("Mod", I32(1), I32(0))


def test_a_tile_of_fewer_axes_gets_them_behind_programs():
    rows, tile = np.arange(6).reshape(2, 3), np.zeros((2, 3, 3), int)
    assert binary("Add", rows, tile)[1, 2].tolist() == [3, 4, 5]


def test_an_undefined_number_is_kept_only_where_the_text_says_it():
    a, b = exact.of_floats([[np.nan, 1.0]]), exact.of_floats([[2.0, 3.0]])
    assert FUNCTIONS["maximum"](a, b).shadow.tolist() == [[2, 3]]
    assert np.isnan(FUNCTIONS["maximum"](a, b, propagate_nan="all").shadow[0, 0])
    assert FUNCTIONS["max"](a, axis=0).shadow.tolist() == [1]


def test_a_tile_is_filled_with_each_program_s_own_number():
    floats = FUNCTIONS["full"]([2, 4], exact.of_floats([1.0, 2.0, 3.0]), Type("float32"))
    whole = FUNCTIONS["full"]([4], np.arange(3), Type("int32"))
    assert floats.shadow.shape == (3, 2, 4) and floats.shadow[:, 1, 3].tolist() == [1, 2, 3]
    assert whole.tolist() == [[n] * 4 for n in range(3)] and FUNCTIONS["full"]([4], 7, Type("int32")).shape == (1, 4)


def test_what_the_language_refuses():
    tile = exact.of_floats(np.zeros((1, 4, 8)))
    for call in (
        lambda: FUNCTIONS["arange"](0, 12),
        lambda: FUNCTIONS["full"]([3], 0.0, Type("float32")),
        lambda: FUNCTIONS["sum"](tile, axis=2),
        lambda: FUNCTIONS["dot"](tile, exact.of_floats(np.zeros((1, 8)))),
        lambda: FUNCTIONS["gather"](tile, np.full((1, 4, 2), 8), 1),
        lambda: unary("Invert", tile),
        lambda: binary("Mod", tile, tile),
    ):
        with pytest.raises(KernelFault):
            call()


def test_products_add_to_what_is_given():
    a = exact.of_floats(np.arange(8.0).reshape(1, 2, 4))
    found = FUNCTIONS["dot"](a, FUNCTIONS["trans"](a), exact.of_floats(np.ones((1, 2, 2))))
    assert found.shadow.tolist() == [[[15, 39], [39, 127]]]
