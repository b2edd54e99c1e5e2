"""Values of one byte: how they are stored for products, that both kernels compute their terms, and what is refused."""


from dataclasses import replace

import pytest
import torch

import onepass
from onepass.lowering.analysis.exact_products import NOTHING_ROUNDED, ROUNDED, with_weights
from onepass.lowering.executors import GLUON
from onepass.lowering.gluon.launch import RefusedLaunch, prepare, suited_plan
from onepass.lowering.hopper import stored_values
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.hopper.stored_values import bind_as_run, with_stored_values
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.lowering.readback.check_plan import differs
from onepass.lowering.triton.launch_texts import launch_texts
from tests.proofs.texts.test_check import plan_of
from tests.support.gluon_ahead_of_time import inputs_of, plain
from tests.support.on_hopper import hold, hopper_texts, pretend_hopper
from tests.support.read_plans import plans_of

needs_gluon = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")
BYTES = torch.float8_e4m3fn
SMALL = HopperConfig(consumers=2, loop_tile=64)


@pytest.fixture(autouse=True)
def few_reads(monkeypatch):
    """Small examples read each value few times."""
    monkeypatch.setattr(stored_values, "MIN_READS", 1)


def scaled(q, k, v, of_q, of_k, of_v):
    """A scale for each tensor, head or token."""
    score = (q.float() * of_q) @ (k.float() * of_k).mT / 6
    return (score.softmax(-1) @ (v.float() * of_v)).to(torch.bfloat16)


def scales(shape, length, values=None):
    torch.manual_seed(0)
    make = lambda *size: (torch.rand(size) + 0.5)
    per = {"tensor": (), "head": (1, 2, 1, 1), "token": (1, 2, length, 1)}
    return [make(*per[shape]), make(*per[shape]), make(*per[values or shape])]


def operands(length=192, width=32, heads=2):
    torch.manual_seed(0)
    return [torch.randn(1, heads, length, width).to(BYTES) for _ in range(3)]


def planned(function, inputs, weights):
    plan, tensors = plan_of(function, inputs)
    return with_weights(plan, weights), tensors


def texts_of(plan, tensors, config=SMALL):
    return hopper_texts(plan, tensors, config, plain="storing_")


@needs_gluon
@pytest.mark.parametrize("weights, length", [("e4m3", 192), ("e4m3", 200), ("half", 192)])
@pytest.mark.parametrize("kind", ["bytes", "causal bytes"])
def test_both_kernels_compute_their_terms(kind, weights, length, monkeypatch):
    pretend_hopper(monkeypatch)
    torch.manual_seed(0)
    given = inputs_of(kind, 32, rows=length, columns=length, batch=1, heads=2)
    storing, main = texts_of(*planned(plain(kind), given, weights))
    turned = weights == "e4m3" and length % 16 == 0
    assert ("narrow_words(" in main.calls[0].text.split("def consumer")[1]) == turned
    assert storing.kernel.output.name == ("v_turned" if turned else "v_bfloat16")
    hold([storing, main])


@needs_gluon
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("shape", ["tensor", "head", "token"])
def test_scales_stay_out_of_products(shape, sign, monkeypatch):
    """Also negative ones, under which the largest score is that of the least product."""
    pretend_hopper(monkeypatch)
    of_q, of_k, of_v = scales(shape, 192)
    of_v = of_v[:, :, :1] if shape == "token" else of_v
    plan, tensors = planned(scaled, [*operands(), sign * of_q, of_k, of_v], "e4m3")
    texts = texts_of(plan, tensors)
    stretched = "stretched_max(" in texts[-1].calls[0].text.split("def consumer")[1]
    assert stretched == (shape != "token")  # those of tokens are multiplied in front
    hold(texts)


@needs_gluon
@pytest.mark.parametrize("kinds", ["b 8 8", "f 8 8", "b 8 b", "8 8 b", "8 8 f", "b 5 5", "5 5 f", "5 5 b"], ids=str)
def test_what_halves_multiply_is_stored_in_their_type(kinds, monkeypatch):
    """A cache of bytes beside queries in half precision, and the other way round."""
    pretend_hopper(monkeypatch)
    named = {"b": torch.bfloat16, "f": torch.float16, "8": BYTES, "5": torch.float8_e5m2}
    given = [x.float().to(named[kind[0]]) for x, kind in zip(operands(), kinds.split(), strict=True)]
    half = next(named[kind[0]] for kind in kinds.split() if kind[0] in "bf")
    function = lambda q, k, v: ((q.float() @ k.float().mT / 6).softmax(-1) @ v.float()).to(half)
    plan, tensors = planned(function, given, "half")
    texts = texts_of(plan, tensors)
    stored = {store.output.dtype for one in texts[:-1] for store in one.stores}
    again = 0 if kinds[0] in "85" else kinds.count(" 8") + kinds.count(" 5")
    assert stored <= {str(half).removeprefix("torch.")} and len(texts) == 1 + again
    hold(texts)


@needs_gluon
@pytest.mark.parametrize("heads", [1, 2])
def test_values_of_several_heads_are_stored_once(heads, monkeypatch):
    pretend_hopper(monkeypatch)
    torch.manual_seed(0)
    q = torch.randn(1, 4, 192, 32).to(BYTES)
    k, v = (torch.randn(1, heads, 192, 32).to(BYTES) for _ in range(2))

    def grouped(q, k, v):
        k, v = (x.repeat_interleave(4 // heads, 1) for x in (k, v))
        return ((q.float() @ k.float().mT / 6).softmax(-1) @ v.float()).to(torch.bfloat16)

    storing, main = texts_of(*planned(grouped, [q, k, v], "e4m3"))
    assert storing.kernel.output.shape == (1, heads, 32, 192)
    hold([storing, main])


@needs_gluon
@pytest.mark.parametrize("sign", [1, -1])
def test_absent_scores_under_a_factor_of_either_sign(sign, monkeypatch):
    """A temperature for each head of half-precision queries, a causal mask, and a last tile that is not whole."""
    pretend_hopper(monkeypatch)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 200, 32).to(torch.bfloat16) for _ in range(3))
    keep = lambda x: torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()

    def function(q, k, v, of_head):
        score = (q @ k.mT).float() * of_head
        return (score.masked_fill(~keep(score), -torch.inf).softmax(-1) @ v.float()).to(q.dtype)

    plan, tensors = plan_of(function, [q, k, v, sign * (torch.rand(2, 1, 1) + 0.5)])
    (one,) = texts = texts_of(plan, tensors)
    assert "stretched_max(" in one.calls[0].text.split("def consumer")[1]
    hold(texts)


def test_a_matrix_that_two_kernels_read_is_stored_once():
    function = lambda q, k, v: (half((q.float() @ k.float().mT).softmax(-1) @ v.float()),) * 2
    plan, _ = plan_of(function, operands())
    twice = replace(plan, kernels=(*plan.kernels, replace(plan.kernels[0], name="again")), weights="e4m3")
    assert [k.name for k in with_stored_values(twice).kernels] == ["storing_v_turned", "kernel0", "again"]


def test_a_name_that_is_taken_is_left_alone():
    function = lambda q, k, v, v_turned: half((q.float() @ k.float().mT + v_turned).softmax(-1) @ v.float())
    plan, _ = plan_of(function, [*operands(), torch.randn(192, 192).to(torch.bfloat16)])
    plan = with_weights(plan, "e4m3")
    assert {t.name for t in plan.inputs} >= {"v_turned"} and with_stored_values(plan) is plan


def test_another_order_is_not_read_back(monkeypatch):
    plan, _ = planned(plain("bytes"), inputs_of("bytes", 32, rows=192, columns=192), "e4m3")
    assert len(suited_plan(plan).kernels) == 2
    monkeypatch.setattr(stored_values, "column_at", lambda place: place)
    wrong = with_stored_values(plan)
    assert "was not read back" in differs(wrong, plan) and suited_plan(plan) is plan


def test_few_rows_and_unknown_sizes_are_left_alone(monkeypatch):
    plan, _ = planned(plain("bytes"), inputs_of("bytes", 32, rows=192, columns=192), "e4m3")
    (kernel,) = plan.kernels
    monkeypatch.setattr(stored_values, "MIN_READS", 193)
    assert with_stored_values(plan) is plan
    with pytest.raises(RefusedLaunch, match="its matrices of bytes are not stored as products take them"):
        prepare(bind(kernel), SMALL, {})
    assert "fewer than 193 rows" in bind_as_run(kernel, "e4m3") == GLUON.kernel_refusal(kernel, plan)
    monkeypatch.setattr(stored_values, "MIN_READS", 192)
    assert not isinstance(bind_as_run(kernel, "e4m3"), str) and GLUON.kernel_refusal(kernel, plan) is None


def test_weights_of_halves_stay_as_they_are():
    plan, _ = plan_of(plain("full"), inputs_of("full", 32, rows=192, columns=192))
    assert with_weights(plan, "e4m3") is plan
    narrow, _ = plan_of(plain("bytes"), inputs_of("bytes", 32, rows=192, columns=192))
    assert with_weights(narrow, "half") is narrow and with_weights(narrow, "e4m3").weights == "e4m3"


def test_float32_results_take_bytes_where_weights_may_be_rounded():
    """Else the error of a sum of products of bytes would be the largest of the result."""
    function = lambda q, k, v: (q.float() @ k.float().mT).softmax(-1) @ v.float()
    plan, _ = plan_of(function, operands())
    assert isinstance(bind(plan.kernels[0]), str)
    assert not isinstance(bind(with_weights(plan, "e4m3").kernels[0]), str)


def test_a_report_says_what_is_rounded_and_stored(monkeypatch):
    """Also where the option rounds nothing, as with values in half precision."""
    function = lambda q, k, v: (q.float() @ k.float().mT).softmax(-1) @ v.float()
    (region,) = onepass.explain(function, *operands(), options={"weights": "e4m3"}).regions
    said = "products of bytes for scores and weighted values, v_turned stored first"
    assert ROUNDED in region.assumptions and said in region.kernels[0].form
    halves = [x.to(torch.bfloat16) for x in operands()]
    (region,) = onepass.explain(function, *halves, options={"weights": "e4m3"}).regions
    assert NOTHING_ROUNDED in region.notes and ROUNDED not in region.assumptions
    (region,) = onepass.explain(function, *operands()).regions
    assert 'options={"weights": "e4m3"}' in region.kernels[0].form


def half(result):
    return result.to(torch.bfloat16)


@needs_gluon
@pytest.mark.parametrize("factor", ["a scale for each value", "no softmax"])
def test_what_more_than_a_softmax_weighs_is_stored_in_halves(factor, monkeypatch):
    """e4m3 holds numbers up to 448, and nothing says how large such weights are."""
    pretend_hopper(monkeypatch)
    weights = (lambda s: s.sigmoid()) if factor == "no softmax" else (lambda s: s.softmax(-1))
    function = lambda q, k, v, c: half(weights(q.float() @ k.float().mT / 6) @ (v.float() * c))
    storing, main = texts_of(*planned(function, [*operands(), torch.rand(192, 1)], "e4m3"))
    assert storing.kernel.output.name == "v_bfloat16"
    hold([storing, main])


REFUSED = {
    "80 columns": (
        lambda q, k, v: half((q.float() @ k.float().mT).softmax(-1) @ v.float()),
        operands(width=80),
        "no multiples of 32",
    ),
    "float32 beside it": (
        lambda q, k, v: (half((q.float() @ k.float().mT).softmax(-1) @ v.float()), (q.float() @ k.float().mT).amax(-1)),
        [*operands()[:2], operands()[2].to(torch.bfloat16)],
        "added up with 13 bits",
    ),
    "two kinds of values": (
        lambda q, k, v, w: half((s := (q.float() @ k.float().mT).softmax(-1)) @ v.float() + s @ w.float()),
        [*operands(), torch.randn(1, 2, 192, 32).to(torch.bfloat16)],
        "some are products of bytes and some of half precision",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    function, inputs, reason = REFUSED[name]
    plan, _ = plan_of(function, inputs)
    found = bind(with_weights(plan, "e4m3").kernels[-1])
    assert isinstance(found, str) and reason in found


def of_symbols(monkeypatch):
    """A plan whose lengths are symbols; of a length the texts of its launch, and why a kernel is plain Triton."""
    ((_, plan),) = plans_of(plain("bytes"), inputs_of("bytes", 32, rows=192, columns=192), False, dynamic=True)
    plan = with_weights(plan, "e4m3")
    assert stored_values.needs_sizes(plan)
    pretend_hopper(monkeypatch)

    def at(length):
        given = inputs_of("bytes", 32, rows=length, columns=length)
        tensors = dict(zip((t.name for t in plan.inputs), given, strict=True))
        pairs = ((n, size) for t, x in zip(plan.inputs, given) for n, size in zip(t.shape, x.shape, strict=True))
        sizes = {n: size for n, size in pairs if isinstance(n, str)}
        launcher = GLUON._launcher(plan, sizes, None, False)
        texts = launch_texts(launcher, tensors, sizes)
        return texts, " ".join(launcher.active.refusals.values())

    return at


@needs_gluon
def test_sizes_of_symbols_say_what_is_stored(monkeypatch):
    """192 and 208 have the same kernels; 200 is no multiple of 16, and 48 rows read each value too rarely."""
    monkeypatch.setattr(stored_values, "MIN_READS", 64)
    at = of_symbols(monkeypatch)
    found = {length: at(length) for length in (192, 208, 200, 48)}
    for length, (texts, why) in found.items():
        narrow = length % 16 == 0 and length > 64
        stores = [one.stores[0].output.name for one in texts[:-1]]
        assert stores == ["v_turned"] * narrow + ["v_bfloat16"] * (length == 200)
        assert ("fewer than 64 rows" in why) == (length == 48)
        assert ("narrow_words(" in texts[-1].calls[0].text) == narrow
        hold(texts)
    assert found[192][0][-1].kernel == found[208][0][-1].kernel


def test_symbols_are_described_by_sizes_that_suit(monkeypatch):
    ((_, plan),) = plans_of(plain("bytes"), inputs_of("bytes", 32, rows=192, columns=192), False, dynamic=True)
    plan = with_weights(plan, "e4m3")
    (kernel,) = plan.kernels
    assert GLUON.kernel_refusal(kernel, plan) is None
    assert "v_turned stored first" in GLUON.describe(kernel, "e4m3")
    assert with_stored_values(plan, {}) is plan and len(with_stored_values(plan).kernels) == 2
