"""Values of more columns than one warpgroup holds: the emitted text computes its terms in every order of warps."""

from dataclasses import replace

import pytest
import torch

from onepass.compiler.verified_kernels import checks
from onepass.lowering.cost.kernel_cost import TIMING
from onepass.lowering.cost.plan_cost import plan_estimate
from onepass.lowering.gluon.launch import GluonLauncher
from onepass.lowering.hopper.config import HOPPER_DEFAULTS
from onepass.lowering.hopper.kernel_form import bind, chunks
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.launch_texts import launch_texts
from onepass.proofs.texts.check import differences
from onepass.tune.kernel_space import configuration, predicted, space_of
from tests.proofs.texts.test_check import plan_of
from tests.support.gluon_ahead_of_time import source_of
from tests.support.on_hopper import hopper_texts, pretend_hopper

WIDE = next(row.config for row in HOPPER_DEFAULTS if row.wide)
needs_gluon = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")


def latents(q, rotated, c, keys):
    """Latents are keys and values, and keys have a part of their own."""
    scores = torch.einsum("bhil,bjl->bhij", q, c) + torch.einsum("bhir,bjr->bhij", rotated, keys)
    return torch.einsum("bhij,bjl->bhil", (scores * 0.1).softmax(-1), c)


def with_lengths(q, rotated, c, keys, lengths):
    """The same of sequences of unequal lengths."""
    scores = torch.einsum("bhil,bjl->bhij", q, c) + torch.einsum("bhir,bjr->bhij", rotated, keys)
    absent = torch.arange(c.shape[1]) >= lengths[:, None, None, None]
    return torch.einsum("bhij,bjl->bhil", (scores * 0.1).masked_fill(absent, -torch.inf).softmax(-1), c)


def plain_sum(q, rotated, c, keys):
    """Scores without a softmax: a sum that is never rescaled."""
    scores = torch.einsum("bhil,bjl->bhij", q, c) + torch.einsum("bhir,bjr->bhij", rotated, keys)
    return torch.einsum("bhij,bjl->bhil", torch.sigmoid(scores * 0.1), c)


def with_logarithm(q, rotated, c, keys):
    """Beside the weighted sum, the logarithm of the weights' sum, which training keeps."""
    scores = torch.einsum("bhil,bjl->bhij", q, c) + torch.einsum("bhir,bjr->bhij", rotated, keys)
    scores = (scores * 0.1).float()
    return torch.einsum("bhij,bjl->bhil", scores.softmax(-1).to(c.dtype), c), scores.logsumexp(-1)


def with_sinks(q, rotated, c, keys):
    """Each row has one score more, without a value."""
    scores = torch.einsum("bhil,bjl->bhij", q, c) + torch.einsum("bhir,bjr->bhij", rotated, keys)
    scores = torch.cat([scores * 0.1, q[..., :1]], -1).softmax(-1)[..., :-1]
    return torch.einsum("bhij,bjl->bhil", scores, c)


def given(rows=80, columns=150, width=288, batch=1):
    torch.manual_seed(0)
    shapes = (batch, rows, 1, width), (batch, rows, 1, 16), (batch, columns, width), (batch, columns, 16)
    return [torch.randn(shape).bfloat16() for shape in shapes]


def texts_of(function, inputs, config=WIDE):
    return hopper_texts(*plan_of(function, inputs), config)


def hold(texts):
    for one, checked in checks(texts, 2**60, 1):
        assert not [f"{one.kernel.name}: {said}" for said in differences(checked)]


@needs_gluon
@pytest.mark.parametrize("function", [latents, plain_sum, with_sinks])
def test_two_warpgroups_share_the_columns(function, monkeypatch):
    pretend_hopper(monkeypatch)
    (one,) = texts = texts_of(function, given())
    assert one.calls[0].text.count("weights.store(") == one.calls[0].text.count("warpgroup_mma(weights") == 2
    hold(texts)


@needs_gluon
def test_what_training_keeps_is_stored_once(monkeypatch):
    pretend_hopper(monkeypatch)
    (one,) = texts = texts_of(with_logarithm, given(rows=256, columns=640, batch=2))
    scores, values = one.calls[0].text.split("def consumer0")[0].split("    else:\n")
    assert "gl.store(output1" in scores and "gl.store(output1" not in values and "gl.store(output" in values
    hold(texts)


@needs_gluon
@pytest.mark.parametrize("change", [{"lazy": False}, {"stages": 1}, {"stages": 3}, {"row_buffers": 2}])
def test_with_other_settings(change, monkeypatch):
    pretend_hopper(monkeypatch)
    hold(texts_of(latents, given(), replace(WIDE, **change)))


@needs_gluon
@pytest.mark.parametrize("lengths", [(1, 150), (64, 0), (65, 149)])
def test_unequal_lengths(lengths, monkeypatch):
    pretend_hopper(monkeypatch)
    hold(texts_of(with_lengths, [*given(batch=2), torch.tensor(lengths)]))


@needs_gluon
@pytest.mark.parametrize("parts", [2, 5])
@pytest.mark.parametrize("lengths", [None, (64, 150)])
def test_loops_in_parts_of_which_some_have_no_tile(lengths, parts, monkeypatch):
    pretend_hopper(monkeypatch)
    more = [] if lengths is None else [torch.tensor(lengths)]
    plan, tensors = plan_of(with_lengths if more else latents, [*given(batch=2), *more])
    (kernel,) = plan.kernels
    launcher = GluonLauncher(plan, TritonConfig(64, 64, 4, 1, chunks=parts), {f"{kernel.name}_parts": WIDE})
    texts = launch_texts(launcher, tensors, {})
    assert "warp_specialize" in texts[0].calls[0].text and len(texts[0].calls) == 2 and not launcher.refusals
    hold(texts)


@needs_gluon
@pytest.mark.parametrize(
    "old, new",
    [
        ("mbarrier.wait(handed_empty.index(0), handed & 1 ^ 1)", "pass"),
        ("mbarrier.wait(handed_full.index(0), handed & 1)", "pass"),
        ("mbarrier.arrive(handed_full.index(0))", "pass"),
        ("mbarrier.arrive(c_empty.index((count) & 1))", "pass"),
        ("vectors.index(1).load", "vectors.index(0).load"),
        (" = rescaled(", " = multiplied(1.0 + "),
    ],
)
def test_a_mistake_shows(old, new, monkeypatch):
    pretend_hopper(monkeypatch)
    (one,) = texts_of(latents, given())
    call = one.calls[0]
    assert old in call.text
    wrong = replace(one, calls=(replace(call, text=call.text.replace(old, new)),))
    with pytest.raises(AssertionError):
        hold([wrong])


def test_latents_are_copied_once():
    plan = plan_of(latents, given())[0]
    binding = bind(plan.kernels[0])
    assert [operand.tensor.name for operand in binding.streams] == ["c", "keys"] and binding.is_wide
    assert "WEIGHT1" not in source_of(plan, WIDE)[2].text.split("else:")[1]
    assert chunks(512) == [(0, 256), (256, 256)] and chunks(288) == [(0, 256), (256, 32)] and chunks(256) == [(0, 256)]


def test_a_tuner_tries_this_form_and_no_other_of_hopper():
    plan, _ = plan_of(latents, given(rows=128, columns=4096, width=512, batch=64))
    times = {}
    for point in space_of(plan.kernels, {}):
        config = configuration(point)
        times.setdefault(getattr(config, "value_warpgroups", "plain"), []).append(predicted(plan.kernels, config, {}))
    assert times.keys() == {1, "plain"} and min(times[1]) < min(times["plain"])


@pytest.mark.parametrize(
    "batch, heads, keys, measured",  # the kernel alone, microseconds on one H200
    [(32, 128, 4096, 69.4), (64, 128, 4096, 131.3), (128, 128, 2048, 141), (1, 128, 32768, 26.0)],
)
def test_one_kernel_is_chosen_and_its_estimate_is_near(batch, heads, keys, measured):
    shapes = (batch, heads, 1, 512), (batch, heads, 1, 64), (batch, keys, 512), (batch, keys, 64)
    plan, _ = plan_of(latents, [torch.zeros(1).bfloat16().expand(shape) for shape in shapes])
    assert len(plan.kernels) == 1
    first = plan_estimate(plan)[0]
    assert first.config.value_warpgroups == 1
    assert (first.estimate.seconds - TIMING.launch) * 1e6 == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize("batch, heads, keys", [(2, 128, 4096), (1, 128, 8192), (4, 64, 2048)])
def test_scores_of_few_sequences_are_not_stored(batch, heads, keys):
    shapes = (batch, heads, 1, 512), (batch, heads, 1, 64), (batch, keys, 512), (batch, keys, 64)
    plan, _ = plan_of(latents, [torch.zeros(1).bfloat16().expand(shape) for shape in shapes])
    assert len(plan.kernels) == 1
