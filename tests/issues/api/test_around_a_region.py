"""What stands around attention and was wrong: no keys by a mask's count, tangents, flex_attention beside, alpha."""

import torch
import torch.autograd.forward_ad as forward_ad
from torch.nn.attention.flex_attention import flex_attention

import onepass
from onepass.api.backend import onepass_backend

OPTIONS = {"inner": "eager", "executor": "tiled", "libraries": False}


def _attention(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def _compiled(function, **more):
    torch._dynamo.reset()
    return torch.compile(function, backend=onepass_backend, options=OPTIONS, **more)


def test_keys_whose_number_turns_out_to_be_zero_give_zero():
    function = lambda q, k, v, kept: _attention(q, k[:, :, kept], v[:, :, kept])
    x = torch.randn(3, 1, 2, 9, 8)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = _compiled(function)
        for kept in (torch.arange(9) < 4, torch.zeros(9, dtype=torch.bool), torch.arange(9) > 6):
            assert torch.allclose(compiled(*x, kept), function(*x, kept), atol=1e-5)


def test_tangents_pass_through_the_original_calls():
    q, k, v, t = torch.randn(4, 1, 2, 16, 16)
    compiled = _compiled(_attention)
    compiled(q, k, v)
    tangents = []
    for function in (_attention, compiled):
        with forward_ad.dual_level():
            tangents.append(forward_ad.unpack_dual(function(forward_ad.make_dual(q, t), k, v)).tangent)
    assert torch.allclose(*tangents, atol=1e-5)


def test_flex_attention_beside_it_takes_nothing_from_the_graph():
    function = lambda q, k, v: flex_attention(q, k, v) + _attention(q, k, v)
    x = torch.randn(3, 1, 2, 16, 16)
    assert torch.allclose(_compiled(function)(*x), function(*x), atol=1e-5)
    assert not onepass.reports()[-1].failures and len(onepass.reports()[-1].regions) == 1


def test_a_number_of_the_call_as_alpha_is_refused_and_no_failure():
    function = lambda q, k, v, c: torch.baddbmm(torch.zeros(1), q, k.mT, alpha=c).softmax(-1) @ v
    x = torch.randn(3, 2, 16, 16)
    assert torch.allclose(_compiled(function, dynamic=True)(*x, 0.25), function(*x, 0.25), atol=1e-5)
    assert not onepass.reports()[-1].failures and onepass.reports()[-1].refusals


def test_a_float_that_is_no_factor_is_refused_for_what_it_is():
    function = lambda q, k, v, c: (q @ k.mT).clamp(-c, c).softmax(-1) @ v
    x = torch.randn(3, 1, 2, 9, 8)
    assert torch.allclose(_compiled(function, dynamic=True)(*x, 0.3), function(*x, 0.3), atol=1e-5)
    (refused,) = onepass.reports()[-1].refusals
    assert "float" in refused.reason and "size" not in refused.reason
