"""A slice's step, or a slope, that is a number with dynamic=True raised inside of onepass: its text was no number.

Now an argument that only a call gives is refused where a handler reads it, if the handler does not say that it takes
such a number; slices, windows and activations take it.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def attend(q, k, v):
    return torch.softmax(q @ k.mT / 3, -1) @ v


def scored(change):
    """Attention whose scores are changed."""
    return lambda q, k, v, n: torch.softmax(change(q @ k.mT, n), -1) @ v


def biased(bias):
    """Attention with a bias for each key."""
    return lambda q, k, v, n: torch.softmax(q @ k.mT + bias(torch.arange(k.shape[-2]), n).to(q.dtype), -1) @ v


def both(change):
    """Attention over keys and values that are changed alike."""
    return lambda q, k, v, n: attend(q, change(k, n), change(v, n))


def windows(x, n):
    return x.unfold(2, 6, n)


def over_windows(q, k, v, n):
    scores = torch.einsum("bhid,bhwdj->bhwij", q, windows(k, n))
    return torch.softmax(scores, -1) @ windows(v, n).mT


FUSED = {
    "step": both(lambda x, n: x[:, :, ::n]),
    "start and step": both(lambda x, n: x[:, :, n::n]),
    "step of rows": lambda q, k, v, n: attend(q[:, :, ::n], k, v),
    "step of scores": lambda q, k, v, n: torch.softmax((q @ k.mT)[..., ::n], -1) @ v[:, :, ::n],
    "step of channels": lambda q, k, v, n: attend(q[..., ::n], k[..., ::n], v),
    "start": both(lambda x, n: x[:, :, n:]),
    "start from the end": both(lambda x, n: x[:, :, -n:]),
    "end": both(lambda x, n: x[:, :, :n]),
    "narrow": both(lambda x, n: x.narrow(2, n, 4)),
    "repeat": both(lambda x, n: x.repeat(1, 1, n, 1)),
    "repeat_interleave": both(lambda x, n: x.repeat_interleave(n, 2)),
    "expand": lambda q, k, v, n: attend(q[None].expand(n, -1, -1, -1, -1), k, v),
    "unflatten": lambda q, k, v, n: attend(q.repeat(1, 1, n, 1).unflatten(2, (n, -1)), k[:, :, None], v[:, :, None]),
    "roll": both(lambda x, n: x.roll(n, 2)),
    "roll of scores": scored(lambda s, n: s.roll(-n, -1)),
    "windows": over_windows,
    "split": both(lambda x, n: x.split(n, 2)[0]),
    "cat": both(lambda x, n: torch.cat([x[:, :, :n], x], 2)),
    "select": lambda q, k, v, n: attend(q, k, v) + v.select(2, n).unsqueeze(2),
    "tril": scored(lambda s, n: s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(n), -math.inf)),
    "triu": scored(lambda s, n: s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(n), -math.inf)),
    "pad": both(lambda x, n: F.pad(x, (0, 0, n, 0))),
    "places from": biased(lambda j, n: j + n),
    "places by": lambda q, k, v, n: torch.softmax(q @ k.mT + torch.arange(0, n * k.shape[-2], n).to(q.dtype), -1) @ v,
    "one_hot": biased(lambda j, n: F.one_hot(j % n, n).sum(-1)),
    "rest": biased(lambda j, n: j % n),
    "quotient": biased(lambda j, n: j // n),
    "limit": biased(lambda j, n: j.clamp(max=n)),
    "power": scored(lambda s, n: s.tanh() ** n),
    "base": scored(lambda s, n: n ** s.tanh()),
    "cap": scored(lambda s, n: n * torch.tanh(s / n)),
    "alpha": scored(lambda s, n: torch.add(s, s.tanh(), alpha=n)),
    "filled": scored(lambda s, n: s.masked_fill(torch.arange(s.shape[-1]) > 3, -n)),
    "chosen": scored(lambda s, n: torch.where(torch.arange(s.shape[-1]) > 3, s, n)),
    "scale": lambda q, k, v, n: F.scaled_dot_product_attention(q, k, v, scale=n),
    "elu": scored(lambda s, n: F.elu(s, n)),
    "leaky_relu": scored(lambda s, n: F.leaky_relu(s, n)),
    "softplus": scored(lambda s, n: F.softplus(s, n)),
}
REFUSED = {
    "pad of scores": lambda q, k, v, n: torch.softmax(F.pad(q @ k.mT, (n, 0)), -1) @ F.pad(v, (0, 0, n, 0)),
    "topk": lambda q, k, v, n: torch.softmax((q @ k.mT).topk(n, -1).values, -1) @ v[:, :, :n],
    "round": scored(lambda s, n: s.round(decimals=n)),
}
CALLS = [(9, 16, 3), (11, 24, 2)]


def checked(function):
    """The report of the first graph, under strict, with results as in float64."""
    run = torch.compile(
        lambda q, k, v, n: function(q, k, v, n),
        backend=onepass_backend,
        dynamic=True,
        options={"inner": "eager", "strict": True},
    )
    for rows, keys, n in CALLS:
        inputs = [torch.randn(1, 2, length, 8) for length in (rows, keys, keys)]
        wanted = function(*(x.double() for x in inputs), n)
        torch.testing.assert_close(run(*inputs, n).double(), wanted, rtol=2e-4, atol=2e-5)
    return records.reports()[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FUSED)
def test_it_is_fused_and_right(name):
    found = checked(FUSED[name])
    assert len(found.regions) == 1 and not found.refusals and not found.failures


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_a_reason_and_right(name):
    found = checked(REFUSED[name])
    assert not found.regions and not found.failures
    assert all(r.file == __file__ and r.line and r.reason for r in found.refusals) and found.refusals


def test_the_reason_names_the_argument():
    (refusal,) = checked(REFUSED["pad of scores"]).refusals
    assert refusal.reason == "aten.pad.default: is supported where its argument 'pad' is the same number at every call"
    assert refusal.kind == "sizes"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["step", "step of scores", "windows", "elu", "softplus"])
def test_the_kernel_is_right_too(name):
    inputs = [torch.randn(1, 2, length, 8) for length in (9, 16, 16)]
    function = FUSED[name]
    options = {"inner": "eager", "strict": True, "executor": "triton"}
    run = torch.compile(lambda q, k, v, n: function(q, k, v, n), backend=onepass_backend, dynamic=True, options=options)
    wanted = function(*(x.double() for x in inputs), 2)
    torch.testing.assert_close(run(*inputs, 2).double(), wanted, rtol=2e-4, atol=2e-5)
    assert records.reports()[-1].regions[0].ran == "triton"
