"""Of two equal attentions one is transposed and copied behind, so its kernel writes the strides of the copy. The other
one, whose result is returned, got these strides, too. And strides of torch's attention are those of its device.
"""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import onepass
from onepass.graph_passes.output_strides import output_strides


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def one_is_copied(q, k, v):
    return attention(q, k, v).transpose(1, 2).contiguous(), attention(k, q, v), attention(v, k, q)


def the_last_is_copied(q, k, v):
    return attention(q, k, v), attention(k, q, v).transpose(1, 2).contiguous()


@pytest.mark.parametrize("function", [one_is_copied, the_last_is_copied], ids=lambda f: f.__name__)
def test_strides_are_those_of_eager(function):
    torch._dynamo.reset()
    before = len(onepass.reports())
    given = [torch.randn(2, 3, 33, 16, dtype=torch.float64) for _ in range(3)]
    run = torch.compile(function, backend="onepass", options={"inner": "eager", "strict": True})
    for found, right in zip(run(*given), function(*given), strict=True):
        torch.testing.assert_close(found, right, check_stride=True)
    (report,) = onepass.reports()[before:]
    assert sum(region.count for region in report.regions) == len(function(*given))


def test_torch_says_which_strides_its_attention_has_on_a_device():
    """A kernel of CUDA gives heads beside their columns, where a CPU gives rows of one head: no GPU is needed here."""
    graph = torch.fx.Graph()
    node = graph.call_function(F.scaled_dot_product_attention, tuple(map(graph.placeholder, "qkv")))
    graph.output(node)
    with FakeTensorMode():
        apart = torch.empty_strided((2, 3, 33, 16), (3168, 1056, 32, 2), device="cuda")
        of_cuda = torch.ops.aten._scaled_dot_product_efficient_attention(apart, apart, apart, None, True)
        node.meta["example_value"] = of_cuda[0]
        assert output_strides(node, {}) == (1584, 16, 48, 1)
        on_a_cpu = torch.empty_strided(apart.shape, apart.stride())
        node.meta["example_value"] = F.scaled_dot_product_attention(*[on_a_cpu] * 3)
        assert output_strides(node, {}) == (1584, 528, 16, 1)
