"""Talking heads are mixed by nn.Conv2d(heads, heads, 1) as often as by einsum; that was taken for a layer that ends the
region, and nothing said so. Such a convolution sums over channels alone; any other stays a border, with its line."""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.api.backend import onepass_backend

HEADS = 4
torch.manual_seed(0)
WEIGHT, BIAS = torch.randn(HEADS, HEADS), torch.randn(HEADS)


def _mixed(before, after=lambda x: x):
    def attention(q, k, v):
        return after(before(q @ k.mT / 4).softmax(-1)) @ v

    return attention


PLAIN = torch.nn.Conv2d(HEADS, HEADS, 1)
SAME = torch.nn.Conv2d(HEADS, HEADS, (1, 1), bias=False, padding="same")
FUSED = {
    "before": _mixed(PLAIN),
    "before and after": _mixed(PLAIN, SAME),
    "by keyword": _mixed(lambda x: F.conv2d(x, WEIGHT[..., None, None], bias=BIAS, stride=1, groups=1)),
    "one long line": _mixed(lambda x: F.conv1d(x.flatten(2), WEIGHT[..., None], BIAS).view_as(x)),
    "in three dims": _mixed(lambda x: F.conv3d(x.unflatten(2, (3, -1)), WEIGHT[..., None, None, None]).view_as(x)),
    "without a batch": lambda q, k, v: PLAIN(q[0] @ k[0].mT / 4).softmax(-1) @ v[0],
}
LEFT = {
    "of neighbours": _mixed(lambda x: F.conv2d(x, WEIGHT[..., None, None].expand(-1, -1, 3, 3), padding=1)),
    "in groups": _mixed(lambda x: F.conv2d(x, WEIGHT[:, :2, None, None], groups=2)),
    "padded": _mixed(lambda x: F.conv2d(x, WEIGHT[..., None, None], padding=(0, 1))[..., 1:-1]),
    "of neighbours, behind the softmax": _mixed(
        lambda x: x, lambda x: F.conv2d(x, WEIGHT[..., None, None].expand(-1, -1, 3, 3), padding=1)
    ),
    "dilated": _mixed(lambda x: F.conv2d(x, WEIGHT[..., None, None], dilation=2)),
}


def _inputs(dtype=torch.float32):
    torch.manual_seed(1)
    return [torch.randn(2, HEADS, 33, 16, dtype=dtype) for _ in range(3)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FUSED)
def test_a_convolution_of_one_place_mixes_heads(name):
    with torch.no_grad():  # weights that are mixed have no derived backward
        report = onepass.explain(FUSED[name], *_inputs())
    (region,) = report.regions
    assert not report.refusals and "conv" not in region.captured


@pytest.mark.parametrize("name", LEFT)
def test_others_are_borders_that_are_named(name):
    report = onepass.explain(LEFT[name], *_inputs())
    assert not report.regions
    (refusal,) = report.refusals
    assert "conv2d" in refusal.reason and refusal.where.startswith(__file__)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [*FUSED, *LEFT])
def test_either_way_it_is_what_eager_computes(name):
    function, inputs = (FUSED | LEFT)[name], _inputs()
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "tiled", "libraries": False, "strict": True}
    with torch.no_grad():
        result = torch.compile(function, backend=onepass_backend, options=options)(*inputs)
        assert torch.allclose(result, function(*inputs), atol=1e-5)
