"""One call that has no term, deep inside of a mask or an index, refused the whole region; so did a literal tensor."""

import pytest
import torch

import onepass

LENGTH = 70


def documents(lengths):
    ids = torch.repeat_interleave(torch.arange(3), lengths, output_size=LENGTH)
    return ids[:, None] != ids


def slopes(_):
    return torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None] * distances(_).abs() > 5


def distances(_):
    return torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)


CASES = {
    "repeat_interleave": documents,
    "tensor": slopes,
    "mod": lambda _: (torch.arange(LENGTH).float() % 5)[:, None] > torch.arange(LENGTH) % 3,
    "several": lambda lengths: documents(lengths) | slopes(lengths),
}


def attend(mask):
    return lambda q, k, v, lengths: (q @ k.mT).masked_fill(mask(lengths), -1e4).softmax(-1) @ v


def inputs():
    generator = torch.Generator().manual_seed(0)
    operands = [torch.randn(2, 4, LENGTH, 16, generator=generator) for _ in range(3)]
    return [*operands, torch.tensor([20, 30, 20])]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_the_attention_is_fused_and_the_call_named(name):
    found = onepass.explain(attend(CASES[name]), *inputs())
    (region,) = found.regions
    assert not found.refusals
    names = ("repeat_interleave", "tensor") if name == "several" else (name,)
    assert all(any(f"{n} in front" in line and "outside" in line for line in region.around) for n in names)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_same(name):
    function = attend(CASES[name])
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="onepass", options={"executor": "tiled", "strict": True})
    *operands, lengths = inputs()
    exact = function(*(x.double() for x in operands), lengths)
    torch.testing.assert_close(compiled(*operands, lengths).double(), exact, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        compiled(*operands, lengths.flip(0) + torch.tensor([5, -5, 0])).double(),
        function(*(x.double() for x in operands), lengths.flip(0) + torch.tensor([5, -5, 0])),
        atol=1e-5,
        rtol=1e-5,
    )


def test_what_the_region_owns_is_refused_as_before():
    owned = lambda q, k, v, _: torch.atan2(q @ k.mT, q @ k.mT).softmax(-1) @ v
    found = onepass.explain(owned, *inputs())
    assert not found.regions and "atan2" in found.refusals[0].reason


def test_a_literal_tensor_is_an_input_inside_of_inductor_too():
    """There it is a constant of the graph, and no operation may be given one that is no fake tensor."""
    torch._dynamo.reset()
    function = attend(slopes)
    with torch.no_grad():
        found = torch.compile(function, options={"joint_custom_pre_pass": onepass.GraphPass()})(*inputs())
    *operands, lengths = inputs()
    exact = function(*(x.double() for x in operands), lengths)
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)
    assert len(onepass.reports()[-1].regions) == 1
