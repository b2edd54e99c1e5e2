"""MLA's queries are joined of a part with places and one without: taken into the kernel, it lost its form on Hopper.

The kernel of DeepSeek's attention was plain Triton. Where the form is worth more than writing the joined tensor, that
is an input; where there is little to do, parts are still read where they lie.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.fusion import compare_plans, estimates


def _joined(nope, rope, cos, k, v):
    turned = torch.cat([rope[..., 32:] * cos, rope[..., :32]], -1)
    q = torch.cat([nope, turned], -1)
    return torch.softmax(q @ k.mT * 0.07, -1) @ v


def _inputs(length, device="cpu", dtype=torch.bfloat16):
    torch.manual_seed(0)
    make = lambda *shape: torch.randn(*shape).to(device, dtype)
    k, v = (make(2, 4, length, width) for width in (192, 128))
    return make(2, 4, length, 128), make(2, 4, length, 64), make(length, 32), k, v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("hopper", [True, False])
def test_they_stay_outside_where_the_form_is_worth_it(hopper, monkeypatch):
    monkeypatch.setattr(estimates, "is_hopper", lambda device: hopper)
    (region,) = onepass.explain(_joined, *_inputs(4096, "meta")).regions
    assert ("where" in region.captured) != hopper
    assert any(compare_plans.LOSES_THE_HOPPER_FORM in said for said in region.around) == hopper
    assert region.kernels[0].form.startswith("warp-specialised Gluon" if hopper else "plain Triton")


@pytest.mark.slow
def test_little_to_do_is_no_reason(monkeypatch):
    monkeypatch.setattr(estimates, "is_hopper", lambda device: True)
    (region,) = onepass.explain(_joined, *_inputs(16, "meta")).regions
    assert "where" in region.captured


def test_it_computes_the_same(monkeypatch):
    monkeypatch.setattr(estimates, "is_hopper", lambda device: True)
    monkeypatch.setattr(estimates, "TIME_SHARE_OF_THE_HOPPER_FORM", 1e9)
    torch._dynamo.reset()
    inputs = _inputs(70)
    options = {"strict": True, "inner": "eager", "executor": "tiled", "libraries": False}
    fused = torch.compile(_joined, backend=onepass_backend, options=options)(*inputs)
    exact = _joined(*(x.double() for x in inputs))
    own = (_joined(*inputs) - exact).abs().max()
    assert (fused - exact).abs().max() <= 2 * own
