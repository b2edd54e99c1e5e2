"""What a function gives whose layers have their rows of one axis, by the pass alone, and the graphs of it."""

import torch

from onepass.regions.layer_rows import flatten_rows


def rewritten(function, *inputs, dynamic=False):
    """The results of a function of these inputs, and its graphs after the pass."""
    torch._dynamo.reset()
    graphs = []

    def backend(gm, _):
        flatten_rows(gm.graph)
        gm.graph.lint()
        gm.recompile()
        graphs.append(gm.graph)
        return gm.forward

    return torch.compile(function, backend=backend, dynamic=dynamic)(*inputs), graphs
