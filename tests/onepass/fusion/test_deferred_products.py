"""Products in front of attention that are cheaper behind its sums: moved for few rows, left alone for many."""

import math

import pytest
import torch
import torch.nn.functional as F

from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.report import records

HEADS, WIDTH, TURNED = 4, 16, 8


def latent(q, turned, c, keys_turned, up_keys, up_values):
    """Keys and values raised from one row for all heads, and a part of the keys that is rotated."""
    k = torch.einsum("bjc,hcd->bhjd", c, up_keys)
    v = torch.einsum("bjc,hcd->bhjd", c, up_values)
    scores = (q @ k.mT + turned @ keys_turned[:, None].mT) / math.sqrt(WIDTH + TURNED)
    return scores.softmax(-1) @ v


def latent_by_one_layer(q, turned, c, keys_turned, up_keys, up_values):
    weight = torch.cat([up_keys, up_values], -1).mT.reshape(-1, c.shape[-1])
    both = F.linear(c, weight).view(*c.shape[:2], HEADS, -1).transpose(1, 2)
    k, v = both.split(WIDTH, -1)
    k = torch.cat([k, keys_turned[:, None].expand(-1, HEADS, -1, -1)], -1)
    scores = torch.cat([q, turned], -1) @ k.mT / math.sqrt(WIDTH + TURNED)
    return scores.softmax(-1) @ v


def latent_causal(q, turned, c, keys_turned, up_keys, up_values):
    k, v = (torch.einsum("bjc,hcd->bhjd", c, up) for up in (up_keys, up_values))
    scores = (q @ k.mT + turned @ keys_turned[:, None].mT) / math.sqrt(WIDTH + TURNED)
    hidden = torch.arange(c.shape[1]) > torch.arange(q.shape[2])[:, None] + c.shape[1] - q.shape[2]
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


def keys_kept(q, turned, c, keys_turned, up_keys, up_values):
    """Keys that are returned are made anyway."""
    k = torch.einsum("bjc,hcd->bhjd", c, up_keys)
    return (q @ k.mT / math.sqrt(WIDTH)).softmax(-1) @ k, k


def tensors(rows, columns, narrow, batch=2):
    shapes = (batch, HEADS, rows, WIDTH), (batch, HEADS, rows, TURNED), (batch, columns, narrow)
    shapes += ((batch, columns, TURNED), (HEADS, narrow, WIDTH), (HEADS, narrow, WIDTH))
    return [torch.randn(*shape) / (math.sqrt(narrow) if shape[0] == HEADS else 1.0) for shape in shapes]


def compiled(function, inputs):
    torch._dynamo.reset()
    process_state.forget("reports")
    options = {"inner": "eager", "executor": "tiled", "strict": True}
    with torch.no_grad():
        result = torch.compile(function, backend=onepass_backend, options=options)(*inputs)
    (found,) = records.reports()
    return result, found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [latent, latent_by_one_layer, latent_causal])
@pytest.mark.parametrize("rows, narrow", [(1, 32), (3, 320)])
def test_few_rows_are_taken_to_the_latent_rows(function, rows, narrow):
    torch.manual_seed(0)
    inputs = tensors(rows, 300, narrow)
    result, found = compiled(function, inputs)
    exact, eager = function(*(x.double() for x in inputs)), function(*inputs)
    assert (result - exact).abs().max() <= 4 * (eager - exact).abs().max() + 1e-6
    (region,) = found.regions
    assert "contraction_associates" in [step.rule for step in region.derivation]
    assert all("moved behind the sum" in line for line in region.around if "in front" in line)
    assert region.passes[1] == 1
    assert max(len(kernel.loops) for kernel in region.kernels) == 1


def test_many_rows_are_not():
    result, found = compiled(latent, inputs := tensors(300, 300, 32))
    torch.testing.assert_close(result, latent(*inputs), rtol=1e-4, atol=1e-5)
    assert not [line for region in found.regions for line in region.around if "moved" in line]


def test_what_others_read_is_made_anyway():
    (result, keys), found = compiled(keys_kept, inputs := tensors(1, 300, 32))
    torch.testing.assert_close((result, keys), keys_kept(*inputs), rtol=1e-4, atol=1e-5)
    assert not [line for region in found.regions for line in region.around if "moved" in line]
