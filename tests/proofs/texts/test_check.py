"""The texts of kernels compute their terms over exact numbers: every variant, its gradients, split loops, paged caches.

By default some variants run; the others are slow.
"""

from dataclasses import replace

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.compiler.verified_kernels import checks, factors
from onepass.errors import OnepassError
from onepass.graph.trace import program_of
from onepass.lowering.masks import block_map
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.records import NotPlannable
from onepass.lowering.triton.launch import Launcher
from onepass.lowering.triton.launch_texts import launch_texts
from onepass.proofs.texts.check import Reference, contiguous, differences
from onepass.translate.translate import translate
from tests.support import pages
from tests.support.backwards import backward_of
from tests.variants import every, heads

SMALL = TritonConfig(32, 32, 4, 1, 1)
SPLIT = TritonConfig(16, 32, 4, 1, 3)
EVERY = 2**60  # all programs run
VARIANTS = {v.name: v for v in every()}
QUICK = ("causal", "hidden rows give zero", "Longformer", "T5 bias", "chosen heads", "one query, filled cache")
BACKWARD_OF_QUICK = ("causal",)
DECODED = ("one query, filled cache", "key lengths", "MLA, one query", "log-sum-exp beside the output")


def plan_of(function, inputs):
    """The plan of a function's forward, and its inputs by name."""
    program = program_of(function, *inputs)
    plan = optimize_all(translate(program).results).plan
    return plan, {entry.name: x for entry, x in zip(program.inputs, inputs, strict=True)}


def hold(plan, tensors, config=SMALL, most=EVERY, sizes=None):
    """Asserts that each text computes its terms; the texts."""
    texts = launch_texts(Launcher(plan, config), tensors, sizes or {})
    for factor in factors(texts) if most == EVERY else (1.0,):
        for one, checked in checks(texts, most, factor):
            assert not [f"{one.kernel.name}: {said}" for said in differences(checked)]
    return texts


def without_kernel(variant):
    """The variant's plan and inputs; skips where it has no kernel of Triton."""
    torch.manual_seed(0)
    try:
        found = plan_of(variant.function, variant.inputs())
        launch_texts(Launcher(found[0], SMALL), found[1], {})
        return found
    except (NotPlannable, OnepassError) as reason:
        pytest.skip(str(reason))


def quick(name, among=QUICK):
    return pytest.param(name, marks=[] if name in among else [pytest.mark.slow])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [quick(name) for name in VARIANTS])
def test_variant(name):
    hold(*without_kernel(VARIANTS[name]))


@pytest.mark.parametrize("name", [quick(name, BACKWARD_OF_QUICK) for name in VARIANTS])
def test_gradients_of_a_variant(name):
    torch.manual_seed(0)
    variant = VARIANTS[name]
    inputs = [x.requires_grad_(x.is_floating_point()) for x in variant.inputs()]
    try:
        plan = backward_of(variant.function, *inputs)
    except (AssertionError, OnepassError) as reason:  # the gradient is left to Inductor
        pytest.skip(str(reason)[:200])
    given = {t.name: drawn(t) for t in plan.inputs}
    try:
        launch_texts(Launcher(plan, SMALL), given, {})
    except (NotPlannable, OnepassError) as reason:
        pytest.skip(str(reason)[:200])
    hold(plan, given)


def drawn(tensor):
    """A random tensor; integers are small, as numbers of documents are."""
    kind = getattr(torch, tensor.dtype)
    if kind.is_floating_point:
        return torch.randn(tensor.shape).to(kind)
    return torch.rand(tensor.shape) < 0.5 if kind == torch.bool else torch.randint(0, 3, tensor.shape).to(kind)


@pytest.mark.parametrize("name", [quick(name) for name in DECODED])
def test_loops_that_programs_share(name):
    texts = hold(*without_kernel(VARIANTS[name]), SPLIT)
    assert any(len(one.calls) > 1 for one in texts)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spelling", [quick(s, pages.SPELLINGS[::5]) for s in pages.SPELLINGS], ids=lambda s: s.name)
def test_pages_of_a_cache(spelling):
    """Entries of a table that nobody may read are no pages."""
    torch.manual_seed(0)
    for batch in (pages.hostile(pages.batch(), False)[0], *([pages.hostile(pages.batch(), True)[0]] * spelling.wraps)):
        found = plan_of(spelling.function, spelling.inputs(batch))
        hold(*found, TritonConfig(16, 16, 4, 1, 1), most=2**59)
        hold(*found, TritonConfig(16, 16, 4, 1, 3), most=2**59)


def test_positions_of_extrema():
    torch.manual_seed(0)
    program = lambda x, w: (lambda s: (*s.max(-1), s.argmin(-1)))(x @ w.T)
    plan, tensors = plan_of(program, [torch.randn(37, 20), torch.randn(300, 20)])
    ((_, checked),) = checks(hold(plan, tensors), EVERY)
    for old, new in (("== top", "!= top"), ("1, smaller)", "1, larger)"), ("4294967296 - first", "4294967296 + first")):
        assert old in checked.calls[0].text and differences(changed(checked, old, new)), old
    hold(plan, tensors, SPLIT)


def documents(q, k, v, ids):
    score = (q @ k.mT / 4).masked_fill(ids[:, None] != ids[None, :], -torch.inf)
    return torch.softmax(score, -1) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("length", [64, 77])
def test_block_maps(length, monkeypatch):
    monkeypatch.setattr(block_map, "MIN_TILES", 1)
    monkeypatch.setattr("onepass.lowering.triton.launch.pays", lambda *args: True)
    torch.manual_seed(0)
    inputs = [*heads(2, rows=length, columns=length), torch.arange(length) // 20]
    (one,) = hold(*plan_of(documents, inputs), TritonConfig(16, 16, 4, 1, 1))
    assert any("map" in name for name in one.inputs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows, columns", [(1, 1), (16, 16), (17, 33), (33, 17), (32, 64), (31, 1)])
@pytest.mark.parametrize("config", [TritonConfig(16, 16), TritonConfig(32, 16), TritonConfig(16, 32)], ids=str)
def test_sizes_and_tiles(rows, columns, config):
    def windowed(q, k, v):
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        kept = (j <= i + 3) & (i - j < 20)
        return torch.softmax((q @ k.mT / 4).masked_fill(~kept, -torch.inf), -1) @ v

    torch.manual_seed(0)
    inputs = heads(2, batch=2, rows=rows, columns=columns, width=12, values=20)
    hold(*plan_of(windowed, inputs), replace(config, chunks=1))


def test_strides_are_those_of_the_tensors():
    torch.manual_seed(0)
    inputs = [x.transpose(1, 2).contiguous().transpose(1, 2)[:, :, :, ::2] for x in heads(2, rows=37, columns=37)]
    hold(*plan_of(VARIANTS["causal"].function, inputs))


def test_some_programs_of_a_large_kernel():
    plan, tensors = plan_of(VARIANTS["causal"].function, heads(2, batch=2, rows=300, columns=300))
    texts = launch_texts(Launcher(plan, SMALL), tensors, {})
    ((_, checked),) = checks(texts, 2**20)
    assert checked.programs and checked.programs[0] == 0 and len(checked.programs) < 20
    assert not differences(checked)
    wrong = changed(checked, "(h, tl.int64) * k_s", "(0, tl.int64) * k_s")
    assert "differ from its term" in differences(wrong)[0]


def changed(checked, old, new):
    """The same with another text."""
    (call,) = checked.calls
    return replace(checked, calls=(replace(call, text=call.text.replace(old, new)),))


def test_what_is_wrong_is_said():
    plan, tensors = plan_of(VARIANTS["causal"].function, heads(2, rows=37, columns=37))
    ((_, checked),) = checks(launch_texts(Launcher(plan, SMALL), tensors, {}))
    reference = Reference(checked)
    said = lambda old, new: differences(changed(checked, old, new), reference)
    assert checked.calls[0].text.count("* i_tile") and not said("#", "# ")
    assert "is read" in said("mask=i_exists[:, None]", "mask=None")[0]
    assert "are not written" in said("mask=i_exists[:, None])", "mask=(i < 20)[:, None])")[-1]
    assert "differ from its term, as [0, 0, 1, 0]" in said("0.36067376022224085", "0.36")[0]
    assert "has no value" in said("k_tile = ", "key_tile = ")[0]


def test_strides_of_a_tensor_without_gaps():
    assert contiguous((2, 3, 4)) == (12, 4, 1) and contiguous(()) == () and contiguous((5,)) == (1,)
