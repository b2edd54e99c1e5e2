"""Gradients through a region at ties, zeros and infinities are autograd's: the conventions of every operation.

Inputs are whole numbers, so that scores have exact ties and zeros, in float32 as in float64. Where autograd has a
number, ours is that number; where it has NaN or an infinity, ours is none, either.
"""

import math

import pytest
import torch
import torch.nn.functional as F

import onepass

pytestmark = pytest.mark.usefixtures("fresh")


def whole(*shape, low=-1, high=2):
    return torch.randint(low, high, shape).float()


def given():
    """q, k, v and a bias. Products of rows and columns are whole numbers from -2 to 2, and 0 where a row of q is 0."""
    q, k, v, bias = whole(2, 40, 2), whole(2, 300, 2), whole(2, 300, 4), whole(40, 300)
    q[:, 3] = 0
    return [q, k, v, bias]


SCORES = {
    "maximum": lambda s, b: torch.maximum(s, b),
    "minimum": lambda s, b: torch.minimum(s, b),
    "max of two": lambda s, b: torch.max(s, b),
    "maximum with a number": lambda s, b: torch.maximum(s, torch.zeros(())),
    "abs": lambda s, b: s.abs(),
    "relu": lambda s, b: F.relu(s),
    "leaky relu": lambda s, b: F.leaky_relu(s, 0.1),
    "clamp": lambda s, b: s.clamp(-1, 1),
    "clamp at 0": lambda s, b: s.clamp(min=0),
    "clamp by tensors": lambda s, b: torch.clamp(s, b - 1, b + 1),
    "hardtanh": lambda s, b: F.hardtanh(s),
    "where": lambda s, b: torch.where(s > 0, s, b),
    "where of itself": lambda s, b: torch.where(s == 0, s * 2, s),
    "a product of a comparison": lambda s, b: s * (s > 0),
    "square": lambda s, b: s.square(),
    "to the power 3": lambda s, b: s**3,
    "to the power 1": lambda s, b: s**1.0,
    "sqrt": lambda s, b: s.square().sqrt(),
    "sqrt of a sum": lambda s, b: (s.square() + 1).sqrt(),
    "rsqrt": lambda s, b: (s.abs() + b.abs()).rsqrt(),
    "over itself": lambda s, b: s / (s.abs() + 1),
    "over zeros": lambda s, b: b / s,
    "log": lambda s, b: s.abs().log(),
    "tanh of infinity": lambda s, b: torch.tanh(s / 0.0),
    "floor": lambda s, b: s.floor() + b,
    "sign": lambda s, b: s * s.sign(),
}
WEIGHTS = {
    "softmax": lambda s: s.softmax(-1),
    "no softmax": lambda s: s,
    "by hand": lambda s: (s - s.amax(-1, keepdim=True)).exp() / (s - s.amax(-1, keepdim=True)).exp().sum(-1, True),
    "shifted by max": lambda s: (s - s.max(-1, keepdim=True).values).exp(),
    "times the largest": lambda s: s.softmax(-1) * s.amax(-1, keepdim=True),
    "less one largest": lambda s: s.softmax(-1) - s.max(-1, keepdim=True).values,
    "over the largest": lambda s: s / (s.amax(-1, keepdim=True) + 3),
}


def gradients(function, inputs, cotangent):
    leaves = [x.clone().requires_grad_() for x in inputs]
    found = torch.autograd.grad(function(*leaves), leaves, cotangent.to(inputs[0].dtype), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True)]


def compared(function, inputs):
    """Compares gradients with autograd's in float64; what the report says of each region's backward."""
    cotangent = whole(2, 40, 4)
    compiled = torch.compile(function, backend="onepass", options={"inner": "eager", "strict": True})
    found = gradients(compiled, inputs, cotangent)
    right = gradients(function, [x.double() for x in inputs], cotangent)
    regions = [region for report in onepass.reports() for region in report.regions]
    assert regions or [refused for report in onepass.reports() for refused in report.refusals]
    for mine, exact in zip(found, right, strict=True):
        number = exact.isfinite()
        assert mine[number].isfinite().all()
        size = exact[number].abs().max().item() if number.any() else 0.0
        torch.testing.assert_close(mine[number].double(), exact[number], atol=2e-5 * size + 1e-12, rtol=0)
        assert not mine[~number].isfinite().any()
    return [region.backward for region in regions]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("score", SCORES)
def test_scores(score):
    compared(lambda q, k, v, b: SCORES[score](q @ k.mT, b).softmax(-1) @ v, given())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("score", ["maximum", "abs", "relu", "clamp", "square", "where"])
def test_scores_without_a_softmax(score):
    said = compared(lambda q, k, v, b: SCORES[score](q @ k.mT, b) @ v, given())
    assert said and all(line.startswith("derived") for line in said)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_weights(weight):
    compared(lambda q, k, v, b: WEIGHTS[weight](q @ k.mT + b) @ v, given())


def test_the_largest_score_as_a_result():
    """amax shares its gradient among equal scores, max over a dim gives it to one of them."""
    for largest in (lambda s: s.amax(-1), lambda s: s.max(-1).values):
        function = lambda q, k, v, b, largest=largest: (q @ k.mT).softmax(-1) @ v + largest(q @ k.mT)[..., None]
        compared(function, given())


HIDDEN = {
    "-∞": (-math.inf, lambda s, keep, fill: s.masked_fill(~keep, fill)),
    "-1e9": (-1e9, lambda s, keep, fill: s.masked_fill(~keep, fill)),
    "the least number": (torch.finfo(torch.float32).min, lambda s, keep, fill: torch.where(keep, s, fill)),
    "-1e9 added": (-1e9, lambda s, keep, fill: s + torch.where(keep, 0.0, fill)),
    "-∞ added": (-math.inf, lambda s, keep, fill: s + torch.where(keep, 0.0, fill)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_hidden_keys_weigh_nothing_and_get_nothing(hidden):
    """The last keys are hidden from every row: their gradients, and those of their values, are 0."""
    fill, hide = HIDDEN[hidden]
    keep = (torch.arange(300) < 280) & (torch.rand(40, 300) < 0.6)
    keep[:, 0] = True
    function = lambda q, k, v, b: hide(q @ k.mT, keep, fill).softmax(-1) @ v
    said = compared(function, given())
    assert said and all(line.startswith("derived") for line in said)
    compiled = torch.compile(function, backend="onepass", options={"inner": "eager", "strict": True})
    _, k, v, _ = gradients(compiled, given(), whole(2, 40, 4))
    assert not k[:, 280:].any() and not v[:, 280:].any()


def test_a_row_without_keys_gets_nothing_and_gives_nothing():
    """Autograd has NaN for the row, and for every key and value. Here they are as if there were no such row."""
    keep = torch.rand(40, 300) < 0.6
    keep[7] = False
    inputs, cotangent = given(), whole(2, 40, 4)
    others = [n for n in range(40) if n != 7]
    compiled = torch.compile(
        lambda q, k, v, b: (q @ k.mT).masked_fill(~keep, -math.inf).softmax(-1) @ v,
        backend="onepass",
        options={"inner": "eager", "strict": True},
    )
    found = gradients(compiled, inputs, cotangent)
    without = lambda q, k, v, b: (q[:, others] @ k.mT).masked_fill(~keep[others], -math.inf).softmax(-1) @ v
    right = gradients(without, [x.double() for x in inputs], cotangent[:, others])
    for mine, exact in zip(found, right, strict=True):
        torch.testing.assert_close(mine.double(), exact, atol=1e-4, rtol=0)
    assert not found[0][:, 7].any() and found[2].any()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("hidden", ["-1e9", "the least number"])
def test_rows_that_keep_nothing_weigh_all_alike(hidden):
    fill, hide = HIDDEN[hidden]
    keep = torch.rand(40, 300) < 0.6
    keep[7] = False
    compared(lambda q, k, v, b: hide(q @ k.mT, keep, fill).softmax(-1) @ v, given())
