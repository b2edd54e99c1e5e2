"""torch.compile(backend="onepass"): right against float64, in training, across graph breaks, with dynamic sizes."""

import math

import pytest
import torch
from torch import library as operations
from torch.nn.functional import scaled_dot_product_attention, softmax

import onepass
from onepass.api.backend import onepass_backend
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.errors import InputError
from onepass.graph.trace import program_of
from onepass.report import records

EAGER = {"inner": "eager"}


pytestmark = pytest.mark.usefixtures("fresh")


def plain(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v


def scaled_first(q, k, v):
    return torch.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1), dim=-1) @ v


def einsum(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhij,bhje->bhie", scores.softmax(-1), v)


def by_hand(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True) @ v


def causal(q, k, v):
    keep = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device))
    return torch.softmax((q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~keep, -math.inf), dim=-1) @ v


def grouped(q, k, v):
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    return softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v


def library(q, k, v):
    return scaled_dot_product_attention(q, k, v)


def library_causal(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True)


SPELLINGS = (plain, scaled_first, einsum, by_hand, causal, grouped, library, library_causal)


def inputs(function=plain, size=300, dtype=torch.float32, dim=16, batch=1):
    heads = 1 if function is grouped else 2
    return [torch.randn(batch, h, size, dim).to(dtype) for h in (2, heads, heads)]


def fused_regions():
    return sum(region.count for r in records.reports() for region in r.regions)


def notes():
    return [note for r in records.reports() for region in r.regions for note in region.notes]


def assert_as_right_as_eager(result, function, arguments):
    exact = function(*(x.double() for x in arguments))
    error, eager = ((x.double() - exact).abs().max().item() for x in (result, function(*arguments)))
    assert result.shape == exact.shape and result.dtype == arguments[0].dtype
    assert error <= 2 * eager + 1e-6


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", SPELLINGS)
def test_every_spelling_is_fused_and_as_right_as_eager(function, dtype):
    arguments = inputs(function, dtype=dtype)
    result = torch.compile(function, backend=onepass_backend, options=EAGER)(*arguments)
    assert fused_regions() == 1
    assert notes() == []
    assert_as_right_as_eager(result, function, arguments)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [plain, causal, library])
def test_one_pass_is_left_of_three(function):
    onepass_report = onepass.explain(function, *inputs(function))
    assert onepass_report.passes == (3, 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", SPELLINGS)
def test_gradients_are_eagers(function):
    arguments = [x.requires_grad_() for x in inputs(function, size=40)]
    again = [x.detach().clone().requires_grad_() for x in arguments]
    weight = torch.randn(1, 2, 40, 16)
    (torch.compile(function, backend=onepass_backend, options=EAGER)(*arguments) * weight).sum().backward()
    (function(*again) * weight).sum().backward()
    assert fused_regions() == 1
    for mine, eagers in zip(arguments, again):
        torch.testing.assert_close(mine.grad, eagers.grad, rtol=1e-4, atol=1e-5)


def test_only_the_gradient_that_is_wanted_is_made():
    q, k, v = inputs(size=40)
    k.requires_grad_()
    result = torch.compile(plain, backend=onepass_backend, options=EAGER)(q, k, v)
    result.sum().backward()
    assert k.grad is not None and q.grad is None and v.grad is None


@pytest.mark.slow
def test_the_operation_passes_torchs_own_checks():
    arguments = inputs(size=40)
    text = compiled_region.make(program_of(causal, *arguments), Options(), [causal(*arguments).stride()]).text
    operations.opcheck(torch.ops.onepass.region.default, ([x.requires_grad_() for x in arguments], text, []))


def with_logsumexp(q, k, v):
    scores = q @ k.mT / 4
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def test_several_results_pass_torchs_own_checks():
    arguments = inputs(size=40)
    strides = [x.stride() for x in with_logsumexp(*arguments)]
    text = compiled_region.make(program_of(with_logsumexp, *arguments), Options(), strides).text
    operations.opcheck(torch.ops.onepass.region.default, ([x.requires_grad_() for x in arguments], text, []))


@pytest.mark.slow
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_gradients_of_several_results_are_eagers(used):
    arguments = [x.requires_grad_() for x in inputs(size=40)]
    again = [x.detach().clone().requires_grad_() for x in arguments]
    fast = torch.compile(with_logsumexp, backend=onepass_backend)
    for function, given in ((fast, arguments), (with_logsumexp, again)):
        results = function(*given)
        sum((results[k] * results[k]).sum() for k in used).backward()
    for mine, eagers in zip(arguments, again):
        if eagers.grad is None:  # Inductor's graph would give zeros
            assert mine.grad is None
        else:
            torch.testing.assert_close(mine.grad, eagers.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_inductor_compiles_the_rest():
    def block(x, w):
        q, k, v = (torch.nn.functional.gelu(x @ w)).chunk(3, -1)
        return torch.nn.functional.layer_norm(plain(q, k, v) + q, (16,))

    x, w = torch.randn(1, 2, 48, 16), torch.randn(16, 48)
    x.requires_grad_()
    result = torch.compile(block, backend="onepass" if installed() else onepass_backend)(x, w)
    torch.testing.assert_close(result, block(x, w), rtol=1e-4, atol=1e-5)
    (grad,) = torch.autograd.grad(result.square().sum(), x)
    (expected,) = torch.autograd.grad(block(x, w).square().sum(), x)
    torch.testing.assert_close(grad, expected, rtol=1e-3, atol=1e-3)
    assert fused_regions() == 1


def installed():
    return "onepass" in torch._dynamo.list_backends(exclude_tags=())


@pytest.mark.slow
def test_both_sides_of_a_graph_break_are_fused():
    def twice(q, k, v):
        x = plain(q, k, v)
        torch._dynamo.graph_break()
        return plain(x, k, v)

    arguments = inputs()
    result = torch.compile(twice, backend=onepass_backend, options=EAGER)(*arguments)
    assert fused_regions() == 2
    torch.testing.assert_close(result, twice(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_without_gradients(mode, inner):
    arguments = inputs()
    compiled = torch.compile(causal, backend=onepass_backend, options={"inner": inner})
    with mode():
        result = compiled(*arguments)
    assert not result.requires_grad and fused_regions() == 1
    torch.testing.assert_close(result, causal(*arguments), rtol=1e-4, atol=1e-5)


def test_the_memory_layout_of_the_result_is_eagers():
    def transposed(q, k, v):
        return plain(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)

    arguments = [x.transpose(1, 2).contiguous() for x in inputs(size=40)]
    result = torch.compile(transposed, backend=onepass_backend, options=EAGER)(*arguments)
    expected = transposed(*arguments)
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_a_marked_dynamic_length(inner):
    compiled = torch.compile(causal, backend=onepass_backend, options={"inner": inner})
    for size in (300, 40, 517):
        arguments = inputs(size=size)
        for x in arguments:
            torch._dynamo.mark_dynamic(x, 2)
        torch.testing.assert_close(compiled(*arguments), causal(*arguments), rtol=1e-4, atol=1e-5)
    assert len(records.reports()) == 1, "one graph serves every length"


@pytest.mark.slow
@pytest.mark.parametrize("function", SPELLINGS)
def test_automatic_dynamic_sizes(function):
    compiled = torch.compile(function, backend=onepass_backend, options=EAGER)
    for size in (40, 50, 300):
        for batch in (2, 3):
            arguments = inputs(function, size=size, batch=batch)
            torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=1e-4, atol=1e-5)
    assert notes() == []


def test_every_size_dynamic():
    compiled = torch.compile(plain, backend=onepass_backend, options=EAGER, dynamic=True)
    for size, dim in ((40, 16), (70, 32)):
        arguments = inputs(size=size, dim=dim)
        torch.testing.assert_close(compiled(*arguments), plain(*arguments), rtol=1e-4, atol=1e-5)


class Layers(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 48) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = x + plain(*layer(x).chunk(3, -1))
        return x


def test_equal_layers_are_searched_once(monkeypatch):
    searches = []
    original = compiled_region._search
    monkeypatch.setattr(compiled_region, "_search", lambda *a: searches.append(1) or original(*a))
    model, x = Layers(8), torch.randn(1, 2, 40, 16)
    result = torch.compile(model, backend=onepass_backend, options=EAGER)(x)
    assert len(searches) <= 2 and fused_regions() == 8  # as it is, and with what is computed around it
    torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)


def test_bad_options_are_named():
    for options, word in (({"rule": []}, "rule"), ({"inner": "c++"}, "inner"), ({"rules": [plain]}, "plain")):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=word):
            torch.compile(plain, backend=onepass_backend, options=options)(*inputs(size=40))


def test_options_without_their_name_are_answered_by_the_call_that_was_meant():
    with pytest.raises(InputError, match=r"by name: onepass_backend\(options={'strict': True}\)"):
        onepass_backend({"strict": True})
