"""Gradients through compiled functions: every variant's derived backward against autograd in float64."""

import pytest
import torch

import onepass
from tests.variants import every

# Their regions are computed again, and the report has these words of the reason.
RECOMPUTED = {
    "largest difference": "a largest element",
    "logarithms of weights mixed": "could overflow",
}


def gradients(function, inputs, draw):
    """The gradients of all floating inputs, for cotangents that `draw` gives for the results."""
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    found = function(*leaves)
    results = [r for r in (found if isinstance(found, tuple) else (found,)) if r.is_floating_point()]
    wanted = [x for x in leaves if x.requires_grad]
    cotangents = [g.to(r.dtype) for g, r in zip(draw(results), results, strict=True)]
    return torch.autograd.grad(results, wanted, cotangents, allow_unused=True)


def greatest(x, where):
    return x[where].abs().amax().item() if where.any() else 0.0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [v.name for v in every() if not v.refused])
def test_every_variant_has_autograds_gradients(name):
    variant = next(v for v in every() if v.name == name)
    torch.manual_seed(0)
    torch._dynamo.reset()
    inputs = variant.inputs()
    drawn: list[torch.Tensor] = []
    draw = lambda results: drawn or drawn.extend(torch.randn_like(r) for r in results) or drawn
    compiled = torch.compile(variant.function, backend="onepass", options={"inner": "eager", "strict": True})
    found = gradients(compiled, inputs, draw)
    backward = [region.backward for region in onepass.reports()[-1].regions]
    exact = gradients(variant.function, [x.double() if x.is_floating_point() else x for x in inputs], draw)
    eager = gradients(variant.function, inputs, draw)
    assert backward
    for ours, right, theirs in zip(found, exact, eager, strict=True):
        assert (ours is None) == (right is None)
        if ours is not None:
            number = ~torch.isnan(right)  # eager's own are not, where a row has no key
            allowed = 4 * greatest(theirs.double() - right, number) + 2e-5 * greatest(right, number)
            assert greatest(ours.double() - right, number) <= allowed
    if name in RECOMPUTED:
        assert any(RECOMPUTED[name] in line for line in backward), backward
    else:
        assert all(line.startswith("derived") for line in backward), backward
