"""Words of the command line: what is read of each, and what is not."""

import argparse

import pytest

from onepass.cli.values import GivenShape, count, meant, pattern, seconds, shape


@pytest.mark.parametrize(("read", "text", "value"), [
    (count, "1", 1),
    (count, " 12 ", 12),
    (seconds, "0.5", 0.5),
    (seconds, "inf", float("inf")),
    (pattern, "^a|b$", "^a|b$"),
    (shape, "8", GivenShape((8,))),
    (shape, "1, 2,3", GivenShape((1, 2, 3))),
    (shape, "mask=1,2:bool", GivenShape((1, 2), "mask", "bool")),
    (shape, "2,2:float16", GivenShape((2, 2), "", "float16")),
    (shape, "0,3", GivenShape((0, 3))),
])  # fmt: skip
def test_what_can_be_read(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(("read", "text"), [
    *((count, text) for text in ("0", "-1", "1.0", "", "one", "1e3", "9" * 40, "٣٠ x")),
    *((seconds, text) for text in ("0", "-0.1", "nan", "", "soon")),
    *((pattern, text) for text in ("[", "(", "a**", "(?P<a>x)(?P<a>y)")),
    *((shape, text) for text in ("", ",", "1,", "-1,2", "a=", "=1", "1;2", "1,2:half", "1x2")),
])  # fmt: skip
def test_what_cannot_be_read_is_said_with_the_word(read, text):
    with pytest.raises(argparse.ArgumentTypeError) as error:
        read(text)
    assert (text.rpartition(":")[2] or repr(text)) in str(error.value)


def test_a_near_word_is_meant_and_otherwise_all_are_said():
    assert meant("lst", ["clear", "list"]) == "; did you mean 'list'?"
    assert meant("zebra", ["list", "clear"]) == "; there are clear, list"
