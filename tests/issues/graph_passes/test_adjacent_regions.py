"""A region that reads another region's output failed with a KeyError: the earlier one had been replaced before."""

import torch

from onepass.api.backend import onepass_backend


def attend(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def test_both_of_two_adjacent_regions_are_fused():
    inputs = [torch.randn(1, 2, 20, 16) for _ in range(3)]
    function = lambda q, k, v: attend(attend(q, k, v), k, v)
    graphs = []

    def backend(gm, example_inputs):
        made = onepass_backend(gm, example_inputs, options={"strict": True, "inner": "eager"})
        graphs.append(gm)
        return made

    result = torch.compile(function, backend=backend)(*inputs)
    torch.testing.assert_close(result, function(*inputs))
    calls = [node for node in graphs[0].graph.nodes if node.target is torch.ops.onepass.region.default]
    assert len(calls) == 2
