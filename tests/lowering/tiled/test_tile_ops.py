"""Terms of many kinds on the tiled executor: monoids, views, gathers, pointwise code, several kernels, any axis order.

Each against the term's meaning in float64, beside eager's own error, with small tiles and large ones.
"""

from math import inf

import pytest
import torch

from onepass.egraph.terms.ops import (
    OPS,
    cast,
    const,
    exp,
    iota,
    le,
    load,
    logical_and,
    make,
    mantissa,
    max_over,
    maximum,
    reduce,
    rescaled_sum,
    scale,
    sum_over,
    where,
)
from onepass.egraph.terms.sizes import UnknownSize, resolve
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.tiled.tile_ops import APPLY
from tests.support.attention_terms import Case, attention, check, error, keep, loaded, one_pass, run


@pytest.mark.usefixtures("tiles")
def test_additive_bias_and_a_state_that_is_shared():
    case = attention((2, 3), 40, 300, mask="causal")
    b0, b1, i, e = case.order
    j, d = Dim("j", 300), Dim("d", 16)
    q, k, v = (
        loaded(Tensor(n, "float32", (2, 3, s, 16)), b0, b1, *x)
        for n, s, x in (("q", 40, (i, d)), ("k", 300, (j, d)), ("v", 300, (j, e)))
    )
    bias = loaded(Tensor("bias", "float32", (3, 40, 300)), b1, i, j)
    scores = sum_over(d, q * k) * 0.25 + bias
    case.term = one_pass(j, scores, v) + max_over(j, scores) * 0.5
    case.inputs["bias"] = torch.randn(3, 40, 300)

    def eager(t):
        s = t["q"] @ t["k"].mT * 0.25 + t["bias"]
        return torch.softmax(s, -1) @ t["v"] + s.amax(-1, keepdim=True) * 0.5

    case.eager = eager
    check(case)


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("tiles")
def test_sums_of_products_with_and_without_a_causal_guard():
    b, i, j, d, e = Dim("b", 2), Dim("i", 300), Dim("j", 300), Dim("d", 16), Dim("e", 20)
    q, k, v = (
        loaded(Tensor(n, "float32", (2, 300, w)), b, *x)
        for n, w, x in (("q", 16, (i, d)), ("k", 16, (j, d)), ("v", 20, (j, e)))
    )
    inputs = {"q": torch.randn(2, 300, 16), "k": torch.randn(2, 300, 16), "v": torch.randn(2, 300, 20)}
    output = Tensor("out", "float32", (2, 300, 20))
    check(Case(sum_over(d, q * sum_over(j, k * v)), output, (b, i, e), inputs, lambda t: t["q"] @ (t["k"].mT @ t["v"])))
    term = sum_over(j, where(le(iota(j), iota(i)), sum_over(d, q * k) * v, 0.0))
    check(Case(term, output, (b, i, e), inputs, lambda t: (t["q"] @ t["k"].mT).tril() @ t["v"]))


@pytest.mark.parametrize("size", [12, 300, "s0"])
@pytest.mark.usefixtures("tiles")
def test_softmax_over_a_row_that_is_also_written(size):
    i, j = Dim("i", 40), Dim("j", size)
    x = loaded(Tensor("x", "float32", (40, size)), i, j)
    weights = exp(x - max_over(j, x))
    output, inputs = Tensor("out", "float32", (40, size)), {"x": torch.randn(40, 300 if size == "s0" else size)}
    eager, sizes = lambda t: torch.softmax(t["x"], -1), {"s0": 300}
    check(Case(weights / sum_over(j, weights), output, (i, j), inputs, eager, sizes))
    state = rescaled_sum(j, x, 1.0)
    check(Case(exp(x - scale(state)) / mantissa(state), output, (i, j), inputs, eager, sizes))


@pytest.mark.parametrize(
    "monoid, fold",
    [
        ("sum", torch.sum),
        ("prod", torch.prod),
        ("max", torch.amax),
        ("min", torch.amin),
        ("any", torch.any),
        ("all", torch.all),
    ],
)
@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.usefixtures("tiles")
def test_monoids(monoid, fold, guarded):
    i, j = Dim("i", 40), Dim("j", 300)
    x = loaded(Tensor("x", "float32", (40, 300)), i, j)
    truth = monoid in ("any", "all")
    absent = {"sum": 0.0, "prod": 1.0, "max": -inf, "min": inf, "any": False, "all": True}[monoid]
    body = make("lt", (x, const(-2.5 if monoid == "any" else 2.5))) if truth else x
    term = reduce(monoid, j, where(le(iota(j), iota(i)), body, absent) if guarded else body)
    value = torch.randn(40, 300) if monoid != "prod" else 1 + torch.randn(40, 300) / 30

    def eager(t):
        y = (t["x"] < (-2.5 if monoid == "any" else 2.5)) if truth else t["x"]
        y = torch.where(keep("causal", 40, 300), y, absent) if guarded else y
        return fold(y, 1)

    check(
        Case(
            where(term, 1.0, 0.0) * const(1.0) if truth else term,
            Tensor("out", "float32", (40,)),
            (i,),
            {"x": value},
            lambda t: eager(t).float(),
        )
    )


@pytest.mark.usefixtures("tiles")
def test_views_are_read_in_place():
    """Permuted, sliced, flipped, expanded and strided inputs, index terms over several dims, and a diagonal."""
    i, j, e = Dim("i", 40), Dim("j", 300), Dim("e", 4)
    base = torch.randn(8, 700, 50)
    x = load(Tensor("x", "float32", (50, 300, 4)), iota(i) + const(3), const(299) - iota(j), iota(e))
    y = load(Tensor("y", "float32", (160,)), iota(i) * const(4) + iota(e))
    z = load(Tensor("z", "float32", (300, 300)), iota(j), iota(j))
    w = load(Tensor("w", "float32", (40, 300)), iota(i), iota(j))
    inputs = {
        "x": base[::2, 100:700:2].permute(2, 1, 0),
        "y": torch.randn(320)[::2],
        "z": torch.randn(300, 300).mT,
        "w": torch.randn(40, 1).expand(40, 300),
    }
    term = sum_over(j, x * y + z * w)

    def eager(t):
        return (t["x"][3:43].flip(1) * t["y"].reshape(40, 1, 4) + (t["z"].diagonal() * t["w"])[..., None]).sum(1)

    check(Case(term, Tensor("out", "float32", (40, 4)), (i, e), inputs, eager))


@pytest.mark.usefixtures("tiles")
def test_gathers():
    """Pages, documents, and a relative position that leaves its table where the guard drops the element."""
    i, j, d, e = Dim("i", 40), Dim("j", 96), Dim("d", 16), Dim("e", 16)
    page = load(Tensor("table", "int64", (6,)), iota(j) // const(16))
    k, v = (
        load(Tensor(n, "float32", (9, 16, 16)), page, iota(j) % const(16), iota(x)) for n, x in (("k", d), ("v", e))
    )
    q, relative = loaded(Tensor("q", "float32", (40, 16)), i, d), load(Tensor("r", "float32", (40,)), iota(i) - iota(j))
    document = lambda x: load(Tensor("document", "int64", (96,)), iota(x))
    kept = logical_and(le(iota(j), iota(i)), make("eq", (document(i), document(j))))
    term = one_pass(j, where(kept, sum_over(d, q * k) + relative, -inf), v)
    inputs = {
        "q": torch.randn(40, 16),
        "k": torch.randn(9, 16, 16),
        "v": torch.randn(9, 16, 16),
        "r": torch.randn(40),
        "table": torch.tensor([3, 1, 8, 0, 2, 7]),
        "document": torch.arange(96) // 11,
    }
    distance = torch.arange(40)[:, None] - torch.arange(96)
    document_of = inputs["document"]
    allowed = (distance >= 0) & (document_of[:40, None] == document_of)

    def eager(t):
        keys, values = (t[n][t["table"]].flatten(0, 1) for n in "kv")
        return torch.softmax((t["q"] @ keys.mT + t["r"][distance.clamp(0)]).masked_fill(~allowed, -inf), -1) @ values

    case = Case(term, Tensor("out", "float32", (40, 16)), (i, e), inputs, eager)
    exact = eager({n: x.double() if x.is_floating_point() else x for n, x in inputs.items()})
    assert error(run(case), exact) <= 2 * error(eager(inputs), exact) + 1e-6


@pytest.mark.usefixtures("tiles")
def test_outputs_in_any_order_and_broadcast():
    case = attention((2, 3), 40, 90, mask="causal")
    n, (b0, b1, i, e) = Dim("n", 5), case.order
    order = (i, n, e, b1, b0)
    check(
        Case(
            case.term,
            Tensor("out", "float32", (40, 5, 16, 3, 2)),
            order,
            case.inputs,
            lambda t: case.eager(t).permute(2, 3, 1, 0)[:, None].expand(40, 5, 16, 3, 2),
        )
    )


@pytest.mark.usefixtures("tiles")
def test_pointwise_code_around_and_inside():
    """Soft capping, a gate and a residual; temporaries are overwritten, and none that is read again."""
    case = attention((2,), 40, 90)
    b, i, e = case.order
    j, d = Dim("j", 90), Dim("d", 16)
    q, k, v = (
        loaded(Tensor(n, "float32", (2, s, 16)), b, *x)
        for n, s, x in (("q", 40, (i, d)), ("k", 90, (j, d)), ("v", 90, (j, e)))
    )
    raw = sum_over(d, q * k)
    gate = make("sigmoid", (raw,))
    capped = make("tanh", (raw / 5.0,)) * 5.0 + raw * gate - maximum(raw, 0.0)
    own = load(Tensor("q", "float32", (2, 40, 16)), iota(b), iota(i), iota(e))
    case.term = one_pass(j, capped, v * gate) + own

    def eager(t):
        s = t["q"] @ t["k"].mT
        g = torch.sigmoid(s)
        return (torch.softmax(torch.tanh(s / 5) * 5 + s * g - s.relu(), -1) * g) @ t["v"] + t["q"]

    case.eager = eager
    check(case)


@pytest.mark.usefixtures("tiles")
def test_rows_without_a_key_as_the_term_says():
    """Where a row keeps nothing the term asks for zero; to know it is one more accumulator of the same loop."""
    case = attention((2,), 70, 90, mask="shifted")
    i, j = case.order[1], Dim("j", 90)
    case.term = where(reduce("any", j, le(iota(j), iota(i) - const(20))), case.term, 0.0)
    (loop,) = build_plan(case.term, case.output, case.order).kernels[0].loops
    assert sorted(a.monoid for a in loop.accumulators) == ["any", "rescaled"] and loop.limits_only
    eager = case.eager
    case.eager = lambda t: eager(t).nan_to_num(0)
    check(case)


@pytest.mark.usefixtures("tiles")
def test_what_a_sum_outside_the_loop_depends_on_is_stored_whole():
    """A projection of all heads: the quotient is stored, not its two sums."""
    case, o = attention((2, 3), 70, 90), Dim("o", 24)
    b, h, i, e = case.order
    w = loaded(Tensor("w", "float32", (48, 24)), iota(h) * const(16) + iota(e), o)
    term = sum_over(h, sum_over(e, case.term * w))
    inputs = {**case.inputs, "w": torch.randn(48, 24)}
    output, order = Tensor("out", "float32", (2, 70, 24)), (b, i, o)
    assert len(build_plan(term, output, order).kernels) == 2
    check(Case(term, output, order, inputs, lambda t: case.eager(t).transpose(1, 2).flatten(2) @ t["w"]))


def test_inputs_are_never_changed():
    case = attention((2,), 40, 90, mask="causal")
    before = {n: x.clone() for n, x in case.inputs.items()}
    run(case)
    i, j = Dim("i", 40), Dim("j", 300)
    x = loaded(Tensor("x", "float32", (40, 300)), i, j)
    value = torch.randn(40, 300)
    kept = value.clone()
    term = mantissa(rescaled_sum(j, where(le(iota(j), iota(i)), cast(x, "float32"), -inf), 1.0))
    run(Case(term, Tensor("out", "float32", (40,)), (i,), {"x": value}, None))
    assert torch.equal(value, kept) and all(torch.equal(x, before[n]) for n, x in case.inputs.items())


def test_sizes_are_arithmetic_over_symbols():
    assert [
        resolve(text, {"s0": 6, "s1": 4})
        for text in ("s0", "4*s0", "s0 - s1 + 1", "(s0 + 7)//s1", "Mod(s0, s1)", "-s1")
    ] == [6, 24, 3, 3, 2, -4]
    for text in ("s2", "__import__('os')", "s0 if s1 else 2", "s0."):
        with pytest.raises(UnknownSize, match="the size"):
            resolve(text, {"s0": 6, "s1": 4})


def test_the_order_of_numbers_is_its_meaning():
    numbers = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3e38, float("inf"), -float("inf"), float("nan"), -float("nan")]
    assert APPLY["order"](torch.tensor(numbers)).tolist() == OPS["order"].meaning(numbers).tolist()
