"""Queries and keys in int8 had no form of Hopper: they were widened in plain Triton, and so was a cache of int8.

Now they are products of warpgroups with 32-bit sums; beside halves, int8 is stored in their type first.
"""

import json
import subprocess
import sys

import pytest
import torch

from onepass.lowering.hopper import stored_values
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.hopper.kernel_class import kernel_class
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.launch.triton_compat import gluon_missing
from tests.proofs.texts.test_check import plan_of
from tests.support.gluon_ahead_of_time import inputs_of, plain, without_interpreter
from tests.support.on_hopper import hold, hopper_texts, pretend_hopper

needs_gluon = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")
SMALL = HopperConfig(consumers=2, loop_tile=64)
pytestmark = pytest.mark.usefixtures("few_reads")


@pytest.fixture
def few_reads(monkeypatch):
    """Small examples read each value few times, and have few columns."""
    monkeypatch.setattr(stored_values, "MIN_READS", 1)
    monkeypatch.setattr(stored_values, "MIN_COLUMNS_OF_WHOLE_NUMBERS", 0)


def texts_of(plan, tensors, config=SMALL):
    return hopper_texts(plan, tensors, config, plain="storing_")


def numbers(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def scales(*shape):
    return torch.rand(*shape, 1) * 0.01 + 0.005


@needs_gluon
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("width, half", [(32, "bfloat16"), (64, "float16"), (96, "bfloat16")])
def test_a_text_computes_its_terms(width, half, chained, monkeypatch):
    """Over exact numbers, in all orders of its warps; also where an item's scores are issued before it."""
    pretend_hopper(monkeypatch)
    torch.manual_seed(0)
    given = inputs_of("signed bytes", width, half, rows=200, columns=192, batch=1, heads=2)
    config = HopperConfig(consumers=2, loop_tile=64, chained=chained)
    (one,) = texts = texts_of(*plan_of(plain("signed bytes"), given), config)
    text = one.calls[0].text.split("def consumer")[1]
    assert "gl.int32, SCORE), use_acc=True" in text and "= sum_of_bytes(score)" in text
    hold(texts)


@needs_gluon
@pytest.mark.parametrize("width, stored", [(64, 2), (128, 2), (256, 0)])
def test_short_factors_are_stored_in_halves_first(width, stored, monkeypatch):
    """On one H200 products of bytes took 1.13 of the time of bfloat16, for 64 and 128 columns."""
    monkeypatch.setattr(stored_values, "MIN_COLUMNS_OF_WHOLE_NUMBERS", 256)
    pretend_hopper(monkeypatch)
    torch.manual_seed(0)
    given = inputs_of("signed bytes", width, "float16", rows=192, columns=192, batch=1, heads=2)
    texts = texts_of(*plan_of(plain("signed bytes"), given))
    names = [one.kernel.name for one in texts]
    assert names == [*(f"storing_{x}_bfloat16" for x in "qk"[:stored]), "kernel0"]
    assert ("int32, SCORE" in texts[-1].calls[0].text) == (stored == 0)
    if width < 128:
        hold(texts)


@needs_gluon
@pytest.mark.parametrize("width", [288, 320])
def test_wide_sums_start_at_zero_and_are_converted(width, monkeypatch):
    pretend_hopper(monkeypatch)
    torch.manual_seed(0)
    q, k, v = numbers(1, 1, 400, width), numbers(1, 1, 400, width), torch.randn(1, 1, 400, 32).to(torch.bfloat16)
    function = lambda q, k, v: ((q.float() @ k.float().mT / 256).softmax(-1) @ v.float()).to(v.dtype)
    (one,) = texts = texts_of(*plan_of(function, [q, k, v]), HopperConfig(consumers=1, loop_tile=64))
    text = one.calls[0].text.split("def consumer")[1]
    assert "gl.full([64, 64], 0, gl.int32, SCORE), use_acc=False" in text and "score.to(gl.float32)" in text
    hold(texts)


@needs_gluon
def test_products_that_are_added_have_one_sum(monkeypatch):
    pretend_hopper(monkeypatch)
    torch.manual_seed(0)
    x, y, v = numbers(2, 1, 2, 128, 32), numbers(2, 1, 2, 128, 32), torch.randn(1, 2, 128, 32).to(torch.bfloat16)

    def function(q, r, k, m, v):
        score = q.float() @ k.float().mT + r.float() @ m.float().mT
        return ((score / 256).softmax(-1) @ v.float()).to(v.dtype)

    (one,) = texts = texts_of(*plan_of(function, [*x, *y, v]))
    assert one.calls[0].text.split("def consumer")[1].count("= sum_of_bytes(score)") == 2  # first tile, others
    hold(texts)


@needs_gluon
def test_a_cache_of_int8_is_stored_in_halves_first(monkeypatch):
    """A prefill with queries in half precision, and a scale for each token of keys and values."""
    pretend_hopper(monkeypatch)
    torch.manual_seed(0)
    q = torch.randn(1, 2, 192, 32).to(torch.float16)
    given = [q, numbers(1, 2, 192, 32), numbers(1, 2, 192, 32), scales(1, 2, 192), scales(1, 2, 192)]

    def function(q, k, v, of_k, of_v):
        score = (q.float() @ k.float().mT) * of_k.mT / 6
        return (score.softmax(-1) @ (v.float() * of_v)).to(q.dtype)

    texts = texts_of(*plan_of(function, given))
    assert [one.kernel.name for one in texts] == ["storing_k_float16", "storing_v_float16", "kernel0"]
    hold(texts)


@pytest.mark.parametrize("lengths, crowds", [((640, 640), True), ((640, 1), False), ((1, 1), False)])
def test_a_scale_for_each_key_crowds_the_code_between_products(lengths, crowds):
    """Its numbers take registers: with tiles of 128 keys, ptxas kept 4,700 bytes of a kernel in memory."""
    q, k, v, *_ = inputs_of("signed bytes", 64, rows=640, columns=640, batch=1, heads=2)
    given = [q, k, v, *(scales(1, 2, n) for n in lengths)]
    (kernel,) = plan_of(plain("signed bytes"), given)[0].kernels
    found = bind(kernel)
    assert kernel_class(found, {}).crowded == crowds


REFUSED = {
    "one kind of bytes beside another": (torch.float8_e4m3fn, 64, "does not multiply rows by columns"),
    "columns of no whole instruction": (torch.int8, 80, "no multiples of 32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    kind, width, reason = REFUSED[name]
    q, k, v = (x.to(torch.int8) for x in torch.randint(-9, 9, (3, 1, 2, 640, width)))
    function = lambda q, k, v: ((q.float() @ k.float().mT).softmax(-1) @ v.float()).to(torch.bfloat16)
    plan, _ = plan_of(function, [q.float().to(kind) if kind.is_floating_point else q, k, v.to(torch.bfloat16)])
    found = bind(plan.kernels[-1])
    assert isinstance(found, str) and reason in found


@pytest.mark.slow
@needs_gluon
def test_it_compiles_without_spilling():
    """Of the widest, and of those with a scale for each token, ptxas spills some (docs/limits.md)."""
    cases = json.dumps([["bytes of heads", 64], ["bytes of heads", 128]])
    script = "from onepass.lowering.hopper import stored_values; from tests.support import gluon_ahead_of_time as g; "
    script += "stored_values.MIN_COLUMNS_OF_WHOLE_NUMBERS = 0; "
    script += f"[print(g.json.dumps([case, g.said_of(*case)])) for case in {cases}]"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=without_interpreter())
    said = [json.loads(line)[1] for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(said) == 2, done.stderr[-1000:]
    assert all(one.get("of_bytes") and one["spilled"] == 0 for one in said), said
