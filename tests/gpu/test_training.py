"""Gradients on a CUDA device, where there is one: of what is learned, joined or not, in order or not, against float64.

`python -m pytest tests/gpu/test_training.py -n 4 --dist loadgroup`: an error of the device spoils its process for all
later tests, so each kind of attention has a process of its own.
"""

import math
import threading

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
BATCH, HEADS = 2, 8


def far_of(score):
    rows, columns = (torch.arange(n, device=score.device) for n in score.shape[-2:])
    return columns - rows[:, None]


def kept(score, mask):
    return score.masked_fill(~mask, -math.inf)


def bucket(far):
    """T5's: near distances, and far ones by their logarithm, of both sides."""
    near = far.abs()
    coarse = 8 + (torch.log(near.clamp(min=1).float() / 8) / math.log(16) * 8).long()
    return (far > 0).long() * 16 + torch.where(near < 8, near, coarse.clamp(max=15))


# The change of a score, and the shapes of what is learned; i and j are lengths
KINDS = {
    "full": (lambda s: s, ()),
    "causal": (lambda s: kept(s, far_of(s) <= 0), ()),
    "window": (lambda s: kept(s, (far_of(s) <= 0) & (far_of(s) > -400)), ()),
    "empty rows": (lambda s: kept(s, (far_of(s) <= 0) & (far_of(s) > -200)), ()),
    "two ranges": (lambda s: kept(s, (far_of(s).abs() <= 64) | (torch.arange(s.shape[-1], device=s.device) < 32)), ()),
    "softcap": (lambda s: 20 * torch.tanh(s / 20), ()),
    "dense bias": (lambda s, bias: s + bias, ("bhij",)),
    "dense bias, window": (lambda s, bias: kept(s + bias, (far_of(s) <= 0) & (far_of(s) > -400)), ("bhij",)),
    "shared bias": (lambda s, bias: s + bias, ("hij",)),
    "bias of keys": (lambda s, bias: s + bias[:, None, None], ("bj",)),
    "t5 table": (lambda s, t: s + t[bucket(far_of(s))].permute(2, 0, 1), ("32 h",)),
    "clamped table": (lambda s, t: s + t[far_of(s).clamp(-64, 64) + 64].permute(2, 0, 1), ("129 h",)),
    "slopes": (lambda s, x: s - x.abs()[:, None, None] * far_of(s).abs(), ("h",)),
    "temperature": (lambda s, x: s * (1 + x[:, None, None] / 8), ("h",)),
}


def attention(kind, groups=1, empty_rows_are_zero=False):
    """Softmax gives NaN in a row that keeps nothing; empty_rows_are_zero: such weights are zero instead."""

    def plain(q, k, v, *learned):
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
        weights = torch.softmax(KINDS[kind][0](q @ k.mT / math.sqrt(q.shape[-1]), *learned), -1)
        return (weights.nan_to_num() if empty_rows_are_zero else weights) @ v

    return plain


def inputs_of(kind, rows, columns, width, groups=1):
    sizes = {"b": BATCH, "h": HEADS, "i": rows, "j": columns}
    shapes = [(BATCH, HEADS, rows, width), *[(BATCH, HEADS // groups, columns, width)] * 2]
    for axes in KINDS[kind][1]:
        number, letters = axes.split() if " " in axes else ("", axes)
        shapes.append((*([int(number)] if number else []), *(sizes[x] for x in letters)))
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]


def gradients(function, inputs, cotangent):
    return torch.autograd.grad(function(*inputs), inputs, cotangent)


def off(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


def check(kind, inputs, deterministic=False, groups=1):
    """Each gradient is as near to float64 as eager's own, twice; in order, with the same bits.

    A row that keeps nothing adds nothing to onepass's gradients, but makes eager's gradient of the values NaN. So eager
    and float64 compute with zeros for the weights of such a row.
    """
    torch._dynamo.reset()
    options = {"strict": True, "deterministic": deterministic}
    compiled = torch.compile(attention(kind, groups), backend=onepass_backend, dynamic=False, options=options)
    result = compiled(*inputs)
    cotangent = torch.randn_like(result)
    ours, again = (torch.autograd.grad(result, inputs, cotangent, retain_graph=True) for _ in range(2))
    wide = [x.detach().double().requires_grad_() for x in inputs]
    right = attention(kind, groups, empty_rows_are_zero=True)
    exact, eager = gradients(right, wide, cotangent.double()), gradients(right, inputs, cotangent)
    torch.cuda.synchronize()
    for number, (one, two, own, best) in enumerate(zip(ours, again, eager, exact, strict=True)):
        allowed = 3 * off(own, best) + 4e-3
        assert off(one, best) <= allowed and off(two, best) <= allowed, number
        assert not deterministic or torch.equal(one, two), number
    (region,) = onepass.reports()[-1].regions
    assert region.backward.startswith("derived")
    return " ".join(region.notes)


CASES = [pytest.param(kind, marks=pytest.mark.xdist_group(kind), id=kind) for kind in KINDS]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("rows, columns", [(512, 512), (333, 517), (1024, 640)])
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("kind", CASES)
def test_gradients_of_all_that_is_learned(kind, width, rows, columns, deterministic):
    torch.manual_seed(0)
    check(kind, inputs_of(kind, rows, columns, width), deterministic)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("groups", [4, HEADS])
@pytest.mark.parametrize("kind", CASES[:2])
def test_groups_of_heads(kind, groups, deterministic):
    torch.manual_seed(1)
    said = check(kind, inputs_of(kind, 640, 640, 64, groups), deterministic, groups)
    if torch.cuda.get_device_capability() == (9, 0):
        assert ("in one order" if deterministic else "in no fixed order") in said


@pytest.mark.parametrize("kind", CASES)
def test_many_tiles(kind):
    """More items than multiprocessors, so that programs go through several."""
    torch.manual_seed(2)
    for width in (64, 128):
        for deterministic in (False, True):
            check(kind, inputs_of(kind, 2048, 2048, width), deterministic)


def padded(q, k, v, lengths):
    keep = torch.arange(k.shape[-2], device=k.device) < lengths[:, None]
    return (q @ k.mT / 8).masked_fill(~keep[:, None, None, :], -math.inf).softmax(-1) @ v


def padded_before(q, k, v, lengths):
    """Causal as well. A mask of all rows and columns is given to the region."""
    before = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    keep = (torch.arange(k.shape[-2], device=k.device) < lengths[:, None])[:, None, None, :] & before
    return (q @ k.mT / 8).masked_fill(~keep, -math.inf).softmax(-1) @ v


def linear(q, k, v):
    weights = torch.relu(q) @ torch.relu(k).mT
    return (weights @ v) / (weights.sum(-1, keepdim=True) + 1)


def linear_in_order(q, k, v):
    return (q @ k.mT).tril() @ v / q.shape[-2]


def near(q, k, v):
    return torch.softmax(-(q[..., None, :] - k[..., None, :, :]).square().mean(-1), -1) @ v


def difference(one, left, two, right, v):
    first, second = (torch.softmax(q @ k.mT / 8, -1) for q, k in ((one, left), (two, right)))
    return first @ v - 0.2 * (second @ v)


def capped(q, k, v):
    return (torch.tanh(q @ k.mT / 8 / 20) * 20).softmax(-1) @ v


def with_sink(q, k, v, sink):
    score = kept(q @ k.mT / 8, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril())
    both = torch.cat([score, sink.reshape(1, -1, 1, 1).expand(*score.shape[:3], 1)], -1)
    return torch.softmax(both, -1)[..., :-1] @ v


def alignment(q, k, v, pair):
    """The gradient of the pair bias sums over the rows of an alignment, which are few programs for each tile."""
    return (q @ k.mT / 8 + pair).softmax(-1) @ v


def batched(length, width=64, count=3):
    return [(BATCH, HEADS, length, width)] * count


LENGTHS = torch.tensor([640, 77])
BEYOND = {
    "padded keys": (padded, [*batched(640), LENGTHS]),
    "padded keys, causal": (padded_before, [*batched(640), LENGTHS]),
    "padded keys, 128 columns": (padded, [*batched(640, 128), LENGTHS]),
    "linear": (linear, batched(1024)),
    "linear, long": (linear, batched(4096)),
    "linear in order": (linear_in_order, batched(1024)),
    "near": (near, batched(512, 32)),
    "difference": (difference, batched(1024, 64, 5)),
    "capped": (capped, batched(1024)),
    "sink": (with_sink, [*batched(1024), (HEADS,)]),
    "alignment": (alignment, [*[(1, 128, 4, 256, 32)] * 3, (1, 1, 4, 256, 256)]),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in BEYOND])
def test_gradients_of_what_is_no_plain_softmax(name):
    """As near to float64 as eager's own, by kernels."""
    torch.manual_seed(3)
    torch._dynamo.reset()
    function, shapes = BEYOND[name]
    draw = lambda shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    inputs = [x.cuda() if isinstance(x, torch.Tensor) else draw(x) for x in shapes]
    compiled = torch.compile(function, backend="onepass", dynamic=False, options={"strict": True, "libraries": False})
    wide = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in inputs]
    of = lambda given: [x for x in given if x.requires_grad]
    result = compiled(*inputs)
    cotangent = torch.randn_like(result)
    ours = torch.autograd.grad(result, of(inputs), cotangent)
    exact = torch.autograd.grad(function(*wide), of(wide), cotangent.double())
    eager = torch.autograd.grad(function(*inputs), of(inputs), cotangent)
    for number, (one, own, best) in enumerate(zip(ours, eager, exact, strict=True)):
        assert off(one, best) <= 3 * off(own, best) + 4e-3, number
    (region,) = onepass.reports()[-1].regions
    assert region.backward.startswith("derived")
    if torch.cuda.get_device_capability() == (9, 0) and name.startswith("padded"):
        assert "gluon" in region.backward_ran, region.backward_ran


def test_kernels_are_compiled_before_they_are_called(monkeypatch, tmp_path):
    """By threads, while the rest is compiled: no call finds that it has to compile a kernel itself."""
    knobs, by_thread = pytest.importorskip("triton").knobs, []
    note = lambda **given: by_thread.append((threading.current_thread().name, given["cache_hit"]))
    monkeypatch.setattr(knobs.compilation, "listener", note)
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    monkeypatch.setitem(KINDS, "own", (lambda s: 7 * torch.tanh(kept(s, far_of(s) <= 0) / 7), ()))
    check("own", inputs_of("own", 1024, 1024, 64))
    compiled = [name for name, was_there in by_thread if not was_there]
    assert len(compiled) >= 4 and all(name.startswith("onepass") for name in compiled), by_thread
