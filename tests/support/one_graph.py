"""Holds a function under dynamic=True to one graph for calls of several lengths, fused and right. For tests/issues."""

import torch

from onepass.api.backend import onepass_backend


def serves_all(function, calls):
    """Each call's tensors, in turn: float64 eager decides, and masks and indices stay what they are."""
    graphs = []

    def backend(module, example_inputs):
        graphs.append(module)
        return onepass_backend(module, example_inputs, options={"strict": True, "inner": "eager"})

    run = torch.compile(function, backend=backend, dynamic=True)
    for inputs in calls:
        exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
        torch.testing.assert_close(run(*inputs), exact, check_dtype=False, atol=1e-5, rtol=1e-4)
    assert len(graphs) == 1
    assert any("onepass" in str(node.target) for node in graphs[0].graph.nodes)
