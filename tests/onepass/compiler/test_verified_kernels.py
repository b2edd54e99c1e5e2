"""verify="kernel": a text that computes its terms runs, and one that does not is not used, and the report says why."""

import dataclasses

import numpy as np
import pytest
import torch

import onepass
from onepass.compiler import verified_kernels
from onepass.compiler.options import Options
from onepass.compiler.verified_kernels import (
    TypicalSizes,
    WrongKernel,
    complaints,
    factors,
    require_equal,
    size_of_scores,
)
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, iota, le, load, sqrt, sum_over, tanh, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.errors import OptionError
from onepass.lowering.executors import GLUON, TILED, TRITON
from onepass.lowering.gluon import launch as gluon_launch
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.lowering.plan.records import NotPlannable
from onepass.lowering.triton import launch
from tests.lowering.triton.test_launch_texts import attention, plan_of
from tests.support.gluon_ahead_of_time import backward_plan_of, inputs_of, plain
from tests.support.on_hopper import pretend_hopper

pytestmark = pytest.mark.usefixtures("fresh")
needs_gluon = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")


def fast(**options):
    given = {"inner": "eager", "executor": "triton", "verify": "kernel", **options}
    return torch.compile(attention, backend="onepass", options=given)


def inputs():
    return [torch.randn(1, 2, 40, 12) for _ in range(3)]


def change_texts(monkeypatch, module, old, new):
    """Texts that a module emits have `new` in place of `old`, which each of them has."""
    right = module.emit

    def emit(*args):
        found = right(*args)
        assert old in found.text
        return dataclasses.replace(found, text=found.text.replace(old, new))

    monkeypatch.setattr(module, "emit", emit)


@pytest.fixture
def wrong_text(monkeypatch):
    """A text with another scale than its term's."""
    change_texts(monkeypatch, launch, "* 0.36067376022224085", "* 0.3606")
    launch.launcher.cache_clear()
    yield
    launch.launcher.cache_clear()


def test_a_right_text_runs_and_the_report_says_it():
    given = inputs()
    torch.testing.assert_close(fast()(*given), attention(*given))
    (region,) = onepass.reports()[-1].regions
    assert region.ran == "triton"
    assert "kernel0: over exact numbers the text computes its terms" in region.notes


def test_a_wrong_text_is_not_used(wrong_text):
    given = inputs()
    torch.testing.assert_close(fast()(*given), attention(*given))
    (region,) = onepass.reports()[-1].regions
    assert region.ran == "tiled"
    (said,) = [note for note in region.notes if "WrongKernel: a text does not compute its terms: kernel0: " in note]
    assert "differ from its term" in said


def test_if_strict_a_wrong_text_is_an_error(wrong_text):
    with pytest.raises(WrongKernel, match="of output differ from its term, as"):
        fast(strict=True)(*inputs())


def test_without_the_option_nothing_is_checked(wrong_text):
    fast(verify="nothing")(*inputs())
    assert onepass.reports()[-1].regions[0].ran == "triton"


def test_the_option_is_read_and_carried():
    options = Options.read({"verify": "kernel"})
    assert Options.from_carried(options.carried()).verify == "kernel" and options.digest() != Options().digest()
    with pytest.raises(OptionError, match="verify is one of nothing, kernel"):
        Options.read({"verify": "always"})


def test_who_has_no_text_that_can_be_checked():
    assert "no texts" in require_equal(TILED, None, {}, {}, None)


def packed(x):
    """Two numbers of four bits in each byte."""
    return torch.stack([x & 15, x >> 4], -1).flatten(-2)


@pytest.mark.parametrize("kind, rows, wrong", [
    ("int8", 20, ""), ("uint8", 20, ""), ("float8_e4m3fn", 20, ""), ("int8", 20, "0xff7fff7f"),
    ("int8", 5, ""), ("uint8", 5, ""), ("float8_e4m3fn", 5, ""), ("int8", 5, "0xff7fff7f"),
])  # fmt: skip
def test_instructions_on_bytes_are_held_against_their_terms(kind, rows, wrong, monkeypatch):
    """With 20 rows these are the first axis of tiles, with 5 the last one."""

    def of_bytes(q, k, v):
        k, v = ((packed(x) if rows == 5 else x & 15) if kind == "uint8" else x for x in (k, v))
        return torch.softmax(q @ k.to(q.dtype).mT * 0.3, -1) @ v.to(q.dtype)

    monkeypatch.setattr(launch, "interpreter_wanted", lambda: False)
    monkeypatch.setattr(launch, "architecture", lambda device: "sm_90")
    if wrong:
        change_texts(monkeypatch, launch, wrong, "0xffffffff")
    launch.launcher.cache_clear()
    width = 32 if (kind, rows) == ("uint8", 5) else 16
    q = torch.randint(0, 256, (1, 2, rows, width), dtype=torch.uint8)
    bytes_ = (torch.randint(0, 256, (1, 2, 40, 16), dtype=torch.uint8) for _ in range(2))
    plan, tensors = plan_of(of_bytes, [q.bfloat16(), *(x.view(getattr(torch, kind)) for x in bytes_)])
    if wrong:
        with pytest.raises(WrongKernel, match="differ from its term"):
            require_equal(TRITON, plan, tensors, {}, None)
    else:
        assert "the text computes its terms" in require_equal(TRITON, plan, tensors, {}, None)
    texts = [s.text for s in launch.launcher(plan)._sources.values()]
    assert any("inline_asm" in text and ("= summed_" in text) == (rows == 5) for text in texts)
    launch.launcher.cache_clear()


@needs_gluon
def test_hopper_form_is_held_against_its_terms(monkeypatch):
    pretend_hopper(monkeypatch)
    given = inputs_of("full", 16, rows=130, columns=130, batch=1, heads=1)
    plan, tensors = plan_of(plain("full"), given)
    assert "the text computes its terms" in require_equal(GLUON, plan, tensors, {}, None)
    change_texts(monkeypatch, gluon_launch, "fence_async_shared()", "pass")
    with pytest.raises(WrongKernel, match=r"rows_full.* is used while the start of"):
        require_equal(GLUON, plan, tensors, {}, None)


@needs_gluon
def test_a_joined_backward_that_is_too_large_is_left_to_others(monkeypatch):
    pretend_hopper(monkeypatch)
    plan = backward_plan_of("full", 16, rows=128, columns=128, batch=1, heads=1)
    tensors = {t.name: torch.randn(t.shape).to(getattr(torch, t.dtype)) for t in plan.inputs}
    assert "the text computes its terms" in require_equal(GLUON, plan, tensors, {}, None)
    monkeypatch.setattr(verified_kernels, "MOST_JOINED_PRODUCTS", 128**2 * 16 - 1)
    with pytest.raises(NotPlannable, match="too large"):
        require_equal(GLUON, plan, tensors, {}, None)


def test_masks_and_sizes_of_a_call_are_kept():
    from tests.lowering.triton.test_launch_texts import masked

    mask = torch.where(torch.rand(40, 40) < 0.5, 0.0, -torch.inf)
    plan, tensors = plan_of(masked, [*inputs(), mask])
    texts = TRITON.texts(plan, tensors, {})
    assert complaints(texts) == [] and factors(texts)[0] == 1.0


I, D = Dim("i", 4), Dim("d", "n")
X, Y = (load(Tensor(name, "float32", (4, "n")), iota(I), iota(D)) for name in "xy")


@pytest.mark.parametrize(
    "term",
    [X * Y, sum_over(D, X * Y) * const(0.5), X / sqrt(sum_over(D, Y * Y)), tanh(X) + Y],
    ids=str,
)
def test_sizes_are_those_of_random_numbers(term):
    """Within a factor of 3."""
    draw = np.random.default_rng(0)
    values = evaluate(term, {name: 8 * draw.standard_normal((4, 64)) for name in "xy"}, sizes={"n": 64})
    found = TypicalSizes({"n": 64}, 8.0, {}).of(term)
    assert 1 / 3 < np.sqrt(np.mean(np.square(values))) / found < 3


def test_what_a_kernel_stores_has_the_size_of_its_term_and_masks_count_for_nothing():
    assert TypicalSizes({"n": 64}, 2.0, {"x": 50.0}).of(X * Y) == 100
    assert TypicalSizes({"n": 64}, -2.0, {}).of(where(le(X, Y), X, const(-1e9))) == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scale", [0.25, 64.0])
@pytest.mark.parametrize("width", [8, 512])
def test_scores_are_made_as_large_whatever_is_summed_in_them(width, scale):
    """Of two kernels, the second one reads what the first one stores: `MLA` with one query is such a plan."""
    from tests.lowering.triton.test_launch_texts import plan_of

    def latent(q, up, c):
        return torch.softmax((q @ up) @ c.mT * scale, -1) @ c

    plan, tensors = plan_of(latent, [torch.randn(1, width), torch.randn(width, width), torch.randn(20, width)])
    texts = TRITON.texts(plan, tensors, {})
    first, large, negative = factors(texts)
    assert 70 < size_of_scores(texts, large) <= 100 and negative == -large and first == min(1.0, large)
    assert complaints(texts) == []
