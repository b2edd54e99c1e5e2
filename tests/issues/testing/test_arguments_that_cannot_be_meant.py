"""Wrong kinds of arguments: the error is a TypeError that says what is accepted.

`assert_rule(law, dtype=...)`, `report.save(5)` and `onepass.reports(3)` raised what Python or pathlib says of them.
"""

import pytest
import torch

import onepass
from onepass.errors import InputError
from onepass.report.records import Report
from onepass.testing import assert_equivalent, assert_rule


@onepass.rule
def doubled(x):
    "x + x = 2 · x"
    return x + x, 2.0 * x


@pytest.mark.parametrize("dtype", [torch.float16, "float31", 3])
def test_a_law_has_no_dtype(dtype):
    with pytest.raises(TypeError, match="it has examples, shrink and seed; a law is tested in float64; ") as found:
        assert_rule(doubled, dtype=dtype)
    assert isinstance(found.value, InputError) and "assert_equivalent(f, g, inputs, dtype=...)" in str(found.value)


def test_no_rule_is_an_input_error():
    with pytest.raises(InputError, match="decorate a law"):
        assert_rule(abs)


@pytest.mark.parametrize("dtype", ["float32", 3, torch.int64, [torch.float32], float])
def test_a_dtype_of_functions_is_one_of_four(dtype):
    with pytest.raises(InputError, match=r"it must be one of torch\.float64, torch\.float32") as found:
        assert_equivalent(torch.abs, torch.abs, ["i"], dtype=dtype)
    assert repr(dtype) in str(found.value)


@pytest.mark.parametrize("path", [5, None, b"out.html", ["out.html"]])
def test_a_page_is_saved_to_a_path(path):
    with pytest.raises(InputError, match=r'a str or an os\.PathLike as "out\.html", not ') as found:
        Report().save(path)
    assert isinstance(found.value, TypeError) and repr(path) in str(found.value)


def test_a_page_is_written(tmp_path):
    for path in (tmp_path / "one.html", str(tmp_path / "other.html")):
        assert Report().save(path).read_text(encoding="utf-8").startswith("<!")


def test_reports_has_no_argument():
    with pytest.raises(TypeError, match=r"reports\(\) takes no argument, and got 3: reports\(\)\[-1\] is the newest"):
        onepass.reports(3)
    assert isinstance(onepass.reports(), tuple)
