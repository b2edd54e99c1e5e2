"""What assert_equivalent draws, what it counts as a difference, and what it says of one."""

import pytest
import torch

from onepass.errors import InputError
from onepass.testing import Refuted, assert_equivalent


def shifted(s):
    return torch.softmax(s, -1)


def unshifted(s):
    return torch.exp(s) / torch.exp(s).sum(-1, keepdim=True)


def refutation(*claim, **options) -> Refuted:
    with pytest.raises(Refuted) as raised:
        assert_equivalent(*claim, **options)
    return raised.value


def test_a_refutation_is_the_same_in_every_run():
    assert len({str(refutation(shifted, unshifted, ["i j"])) for _ in range(3)}) == 1


def test_a_seed_changes_what_is_drawn():
    def drawn(seed):
        seen = []
        assert_equivalent(lambda x: seen.append(x.tolist()) or x, lambda x: x, ["i j"], examples=20, seed=seed)
        return repr(seen)

    assert drawn(0) == drawn(0) != drawn(1)


def test_a_refutation_says_which_side_is_finite_and_how_to_see_it_again():
    found = refutation(shifted, unshifted, ["i j"], seed=3)
    assert "at (0, 0) shifted is finite, unshifted is nan (exp is the first call that makes it of finite" in str(found)
    assert "torch.float64, seed 3: the same call finds this again" in str(found)
    assert shifted(*found.arguments).isfinite().all() and not unshifted(*found.arguments).isfinite().all()
    assert found.arguments[0].shape == (1, 1)


def test_a_refutation_says_how_much_of_a_difference_is_rounding():
    found = refutation(lambda x: x, lambda x: x * (1 + 1e-6), ["n"], finite=True)
    assert "they differ by 1e-06; rounding explains 1e-09" in str(found)
    assert "<lambda> (the first) and <lambda> (the second) differ" in str(found)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype, largest", [(torch.float16, 50.0), (torch.bfloat16, 200.0), (torch.float32, 200.0)])
def test_a_dtype_overflows_at_its_own_range(dtype, largest):
    assert_equivalent(shifted, unshifted, ["i j"], finite=True, largest=5.0, dtype=dtype, examples=50)
    found = refutation(shifted, unshifted, ["i j"], finite=True, largest=largest, dtype=dtype)
    assert found.arguments[0].dtype == dtype
    assert_equivalent(shifted, unshifted, ["i j"], finite=True, largest=largest, examples=50)  # in float64


def test_what_is_drawn_is_as_large_as_asked():
    seen = []
    noted = lambda x: seen.append(x.abs().max().item()) or x
    assert_equivalent(noted, lambda x: x, ["n"], finite=True, largest=0.6)
    assert seen[0] == 2.0  # the first call looks for numbers in the function
    assert 0.4 < max(seen[1:]) <= 0.6


@pytest.mark.parametrize("dtype", [torch.int64, torch.float8_e5m2, "float64"])
def test_a_dtype_must_be_one_of_four(dtype):
    with pytest.raises(TypeError, match=r"it must be one of torch.float64, "):
        assert_equivalent(shifted, shifted, ["i j"], dtype=dtype)


def test_sums_may_overflow_in_another_order_unless_they_are_asked_about():
    claim = (lambda q, k: q @ k.mT / 8, lambda q, k: q / 8 @ k.mT, ["i d", "j d"])
    assert_equivalent(*claim, finite=True, dtype=torch.float16)
    assert "inf" in str(refutation(*claim, finite=True, dtype=torch.float16, sums_may_overflow=False))


def test_functions_that_overflow_are_told_beside_sums_that_do():
    assert "pow" in str(refutation(torch.abs, lambda x: x.square().sqrt(), ["n"], finite=True))


def test_functions_that_are_never_compared_are_an_error():
    large = torch.tensor([1e200], dtype=torch.float64)
    with pytest.raises(ValueError, match="were never compared: at all arguments a sum or a product leaves the range"):
        assert_equivalent(lambda x, y: x * y / y, lambda x, y: x, [large, 2 * large])


def test_an_error_of_one_function_refutes_and_of_both_is_raised():
    def picky(x):
        raise ValueError("too hostile")

    assert "picky raises ValueError, shifted gives a result: too hostile" in str(refutation(picky, shifted, ["i j"]))
    with pytest.raises(InputError, match=r"both raise at arguments of shape .*ValueError: too hostile") as found:
        assert_equivalent(picky, picky, ["i j"])
    assert isinstance(found.value.__cause__, ValueError)


@pytest.mark.slow
def test_sizes_of_zero_are_drawn_on_demand():
    total, greatest = lambda x: x.sum(-1) * 0, lambda x: x.amax(-1) * 0
    assert_equivalent(total, greatest, ["i j"], finite=True)
    assert "raises IndexError" in str(refutation(total, greatest, ["i j"], finite=True, empty=True))
    assert_equivalent(greatest, greatest, ["i j"], finite=True, empty=True)  # both refuse sizes of zero


def test_a_looser_rtol_is_granted_to_every_operation():
    coarse = lambda x: (x.float().to(x.dtype)).square().sum(-1)
    claim = (lambda x: x.square().sum(-1), coarse, ["i j"])
    assert "rounding explains" in str(refutation(*claim, finite=True, largest=1e10))
    assert_equivalent(*claim, finite=True, largest=1e10, rtol=1e-5)


def test_compiled_functions_are_compared_as_compiled():
    calls = []

    def backend(graph, inputs):
        return lambda *given: calls.append(1) or tuple(x + 1 for x in graph(*given))

    wrong = torch.compile(lambda s: torch.exp(s), backend=backend)
    assert "output 0" in str(refutation(torch.exp, wrong, [(2, 3)], examples=5)) and calls


def test_edges_are_those_of_the_calls_and_numbers_in_the_functions():
    from onepass.testing.trace import edges_of_functions

    function = lambda x: torch.where(x < 2.7, torch.exp(x), x.half().to(x.dtype))
    edges = edges_of_functions([function], ["n"], torch.float64)
    assert 2.7 in edges and 65504.0 in edges and any(abs(x - 709.78) < 0.01 for x in edges)
