"""The comparison of a kernel's first results passes what only rounds, and finds what leaves out, adds or mixes up."""

import pytest
import torch

from onepass.api.backend import Options
from onepass.compiler import compiled_region
from onepass.graph.trace import program_of
from onepass.runtime import compare_results, runner
from onepass.runtime.compare_results import RoundingFacts, computed_dtypes, mismatch, moved, undecided

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
REGIMES = {
    "normal": lambda q, k, v: None,
    "uniform": lambda q, k, v: q.zero_(),
    "large": lambda q, k, v: q.mul_(30),
    "tiny": lambda q, k, v: v.mul_(1e-3),
    "near the end of half": lambda q, k, v: k.mul_(3e3),
    "ties": lambda q, k, v: k.copy_(k[:, :1].expand_as(k)),
}


def given(dtype, regime="normal", columns=300):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 64) for n in (70, columns, columns))
    REGIMES[regime](q, k, v)
    return [x.to(dtype) for x in (q, k, v)]


def tiled(q, k, v):
    """In float32, as the tiled executor adds up."""
    return torch.softmax(q.float() @ k.float().mT / 8, -1) @ v.float()


def streamed(q, k, v, tile=64, fault=""):
    """Tile by tile, weights rounded to the dtype of the values, as a kernel does; with one fault."""
    peak, total = torch.full((2, q.shape[1], 1), -torch.inf), 0
    out = torch.zeros(2, q.shape[1], v.shape[-1])
    for n, start in enumerate(range(0, k.shape[1], tile)):
        keys, values = k[:, start : start + tile].float(), v[:, start : start + tile].float()
        if fault == "counts padding" and keys.shape[1] < tile:
            keys, values = (torch.nn.functional.pad(x, (0, 0, 0, tile - x.shape[1])) for x in (keys, values))
        scores = q.float() @ keys.mT / 8
        if fault == "drops one key" and n == 1:
            scores[..., 5] = -torch.inf
        new = torch.maximum(peak, scores.amax(-1, keepdim=True))
        decay = torch.exp(peak - new) if fault != "does not rescale" or n == 0 else torch.ones_like(new)
        weights = torch.exp(scores - (peak if fault == "uses the scale before" and n else new))
        total = total * decay + weights.sum(-1, keepdim=True)
        out = out * decay + weights.to(v.dtype).float() @ (values.roll(1, 1) if fault == "shifts values" else values)
        peak = new
    return out / total


@pytest.mark.sampled(66)
@pytest.mark.parametrize("result", ["float32", "same"])
@pytest.mark.parametrize("columns", [1, 37, 1000])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding_agrees(dtype, regime, columns, result):
    inputs = given(dtype, regime, columns)
    kind = torch.float32 if result == "float32" else dtype
    assert mismatch(streamed(*inputs).to(kind), tiled(*inputs).to(kind), inputs) is None


FAULTS = ["drops one key", "does not rescale", "uses the scale before", "shifts values", "counts padding"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gross_errors_do_not(dtype, fault):
    for regime in ("normal", "uniform") if fault in ("drops one key", "counts padding") else ("normal",):
        inputs = given(dtype, regime)
        assert mismatch(streamed(*inputs, fault=fault).to(dtype), tiled(*inputs).to(dtype), inputs) is not None, regime


def test_the_size_of_a_result_counts_not_its_unit():
    inputs = [x * 1e-3 if n == 2 else x for n, x in enumerate(given(torch.float32))]
    assert mismatch(streamed(*inputs, fault="drops one key"), tiled(*inputs), inputs) is not None


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_places_of_nan_decide_only_where_inputs_are_finite(value):
    inputs = given(torch.float16)
    expected = tiled(*inputs)
    result = expected.clone()
    result[0, 3] = value
    assert mismatch(result, expected, inputs) is not None and not undecided(result, expected, inputs)
    inputs[2][0, 5] = value
    assert mismatch(result, expected, inputs) is not None and undecided(result, expected, inputs)
    assert not undecided(result + 1, expected, inputs)
    inputs[2][0, 5] = -torch.inf
    assert not undecided(result, expected, inputs)


@pytest.mark.parametrize("beyond", [torch.nan, torch.inf, -torch.inf])
def test_sums_beyond_the_end_of_a_dtype_decide_nothing(beyond):
    """Found by random programs on a GPU: sums with weights of -3.4e38 are infinite in one order and NaN in another."""
    inputs = given(torch.bfloat16)
    expected = tiled(*inputs)
    result = expected.clone()
    result[0, 3] = torch.nan
    assert not undecided(result, expected, inputs)
    expected[0, 3] = beyond
    assert undecided(result, expected, inputs) is True
    assert not undecided(result + 1, expected, inputs)


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 8, -1) @ v


def test_an_undecided_call_gets_the_tiled_results_and_the_next_one_decides(monkeypatch, fresh):
    inputs = given(torch.float32)
    one = runner.Runner(compiled_region.make(program_of(attention, *inputs), Options(executor="triton")))
    call = runner.call_of(one.found, inputs, ())

    def kernel(given):
        result = attention(*given)
        result[0, 0] = torch.nan if given[2].isnan().any() else result[0, 0]
        return [result]

    usual, hidden = inputs, [inputs[0], inputs[1], inputs[2].clone()]
    hidden[2][1, 7] = torch.nan
    (result,), known = one.validate("kind", kernel, hidden, call)
    assert not known and result[0, 0].isfinite().all() and "kind" not in one.validated
    assert one.validate("kind", kernel, usual, call)[1] and "kind" in one.validated
    for _ in range(runner.MAX_UNDECIDED_COMPARISONS):
        assert not one.validate("other", kernel, hidden, call)[1]
    with pytest.raises(runner.ExecutorError, match="different places"):
        one.validate("other", kernel, hidden, call)


def test_float32_that_is_multiplied_in_less_is_compared_with_less(monkeypatch):
    inputs = given(torch.float32)
    halves = streamed(*[x.half() for x in inputs]).float()
    assert mismatch(halves, tiled(*inputs), inputs) is not None
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert compare_results.mismatch(halves, tiled(*inputs), inputs) is None


def of_constant(q, k, v, constants):
    """The gradient of numbers that are added to all scores of a row: 0, but for rounding."""
    with torch.enable_grad():
        added = constants.clone().requires_grad_()
        result = torch.softmax(q @ k.mT / 8 + added, -1) @ v
        return torch.autograd.grad(result.square().sum(), added)[0]


def test_where_all_cancels_noise_is_compared_with_noise():
    inputs = [*given(torch.float32), torch.randn(2, 70, 1)]
    expected = of_constant(*inputs)
    other = of_constant(*(x.roll(1, 1) for x in inputs[:1]), *(x.flip(1) for x in inputs[1:3]), inputs[3].roll(1, 1))
    other = other.roll(-1, 1)  # the same sums in another order
    assert 0 < expected.abs().max() < 1e-4 and not torch.equal(other, expected)
    known = RoundingFacts(moved=of_constant(*moved(inputs)))
    assert mismatch(other, expected, inputs) is not None and mismatch(other, expected, inputs, known) is None
    assert mismatch(other + 1e-3, expected, inputs, known) is not None


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_rounding_moves_hides_no_gross_error(dtype, fault):
    inputs = given(dtype)
    known = RoundingFacts(moved=tiled(*moved(inputs)).to(dtype))
    assert mismatch(streamed(*inputs, fault=fault).to(dtype), tiled(*inputs).to(dtype), inputs, known) is not None


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_numbers_are_moved_by_their_own_rounding(dtype):
    least = torch.finfo(dtype).min
    one = torch.tensor([1.5, -3e-3, 0.0, torch.inf, -torch.inf, torch.nan, least], dtype=dtype)
    before = torch.get_rng_state()
    (other, whole) = moved([one, torch.arange(3)])
    assert torch.equal(before, torch.get_rng_state()) and torch.equal(whole, torch.arange(3))
    assert torch.equal(other[2:], one[2:]) or torch.equal(other[2:].nan_to_num(), one[2:].nan_to_num())
    change = ((other[:2].double() - one[:2].double()) / one[:2].double()).abs()
    assert (change > 0).all() and (change <= 2 * torch.finfo(dtype).eps).all()


def rounded_between(q, k, v):
    return torch.softmax((q @ k.mT).float(), -1).to(v.dtype) @ v


def test_a_plan_says_in_what_it_computes():
    inputs = [x.double() for x in given(torch.float32)]
    found = compiled_region.make(program_of(rounded_between, *inputs), Options())
    assert computed_dtypes(found.plan) == {torch.float32, torch.float64}


def of_positions(program, given, change):
    """The pairs that a runner compares where the tiled executor's positions are changed, and those that differ."""
    made = runner.Runner(compiled_region.make(program_of(program, *given), Options(executor="tiled")))
    call = made._call(given, [])
    expected = made._expected(given, call)
    results = [change(x.clone()) if x.dtype == torch.int64 else x for x in expected]
    return made._compared(results, expected, given, call), made._mismatched(results, expected, given, call)


POSITIONS = {
    "largest": lambda x, w: (x @ w.T).argmax(-1),
    "smallest": lambda x, w: (x @ w.T).argmin(-1, keepdim=True),
    "of columns": lambda x, w: (x @ w.T).argmax(0),
    "values, too": lambda x, w: tuple((x @ w.T).max(-1)),
    "both directions": lambda x, w: (lambda s: (s.argmax(-1), s.min(0).indices))(x @ w.T),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_are_compared_by_the_elements_there(name):
    torch.manual_seed(0)
    x = torch.randn(70, 24)
    given = [x, torch.cat([x, x * (1 + 2.0**-22)])]  # of each column there are two that are almost equal
    rows = name in ("of columns", "both directions")
    other = (lambda at: at) if rows else (lambda at: (at + 70) % 140)
    pairs, differing = of_positions(POSITIONS[name], given, other)
    assert not differing and all(mine.dtype == torch.float32 or rows for mine, _ in pairs)
    _, differing = of_positions(POSITIONS[name], given, lambda at: (at + 1) % 70)
    assert differing and "average" in differing[0][-1]
    _, differing = of_positions(POSITIONS[name], given, lambda at: at + 1000)
    assert [reason for *_, reason in differing].count("different values") == len(differing) >= 1


def test_one_wrong_position_of_many_is_found():
    def of_one(at):
        at[5] = (at[5] + 1) % 300
        return at

    torch.manual_seed(0)
    _, differing = of_positions(POSITIONS["largest"], [torch.randn(70, 24), torch.randn(300, 24)], of_one)
    assert differing
