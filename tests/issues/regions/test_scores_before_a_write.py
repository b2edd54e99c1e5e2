"""Scores of a cache, or of a view of it, that was written before they were used: refused although all that they read
stood before the write. And a cache that is an input beside a view of itself was wrong: they are the same memory.
"""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def scores(q, k, v, part, new):
    s = q @ k.mT
    k[:, :, 2:4] = new
    return s.softmax(-1) @ v


def scores_of_a_view(q, k, v, part, new):
    s = q @ k[:, :, :5].mT
    k[:, :, 2:4] = new
    return s.sigmoid() @ v[:, :, :5]


def scores_of_both_times(q, k, v, part, new):
    before = q @ k.mT
    k[:, :, 2:4] = new
    return before.softmax(-1) @ v, (q @ k.mT).softmax(-1) @ v


def scores_of_another_input(q, k, v, part, new):
    s = q @ part.mT
    k.zero_()
    return s.softmax(-1) @ v[:, :, :5]


def bias_of_the_old(q, k, v, part, new):
    s = q @ v.mT + part.sum((-1, -2))[:, :, None, None] + k[..., 0][:, :, None]
    k[:, :, 2:4] = new
    return s.softmax(-1) @ v


def values_written_too(q, k, v, part, new):
    weights = (q @ k.mT).softmax(-1)
    k[:, :, 2:4] = new
    v[:, :, 2:4] = new
    return weights @ v


def values_through_another_input(q, k, v, part, new):
    weights = (q @ v[:, :, :5].mT).softmax(-1)
    v.zero_()
    k.zero_()
    return weights @ part


def between_two_writes(q, k, v, part, new):
    weights = (q @ v[:, :, :5].mT).softmax(-1)
    k.add_(1)
    v.zero_()
    return weights @ part


FUSED = [scores, scores_of_a_view, scores_of_another_input, bias_of_the_old, between_two_writes]
CASES = dict.fromkeys(FUSED, 1) | {scores_of_both_times: 2, values_written_too: 0, values_through_another_input: 0}


def arguments():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 9, 8) for _ in range(3))
    return [q, k, v, k[:, :, :5], torch.randn(2, 3, 2, 8)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", CASES)
def test_the_values_are_those_of_their_time(function, dynamic):
    options = {"strict": True, "inner": "eager"}
    given = arguments()
    exact = [x.double() for x in given[:3]]
    exact += [exact[1][:, :, :5], given[4].double()]
    found = torch.compile(function, backend=onepass_backend, options=options, dynamic=dynamic)(*given)
    torch.testing.assert_close(found, function(*exact), check_dtype=False, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(given, exact, check_dtype=False, atol=1e-6, rtol=1e-6)
    (said,) = records.reports()
    assert sum(region.count for region in said.regions) == CASES[function]
    assert [r.kind for r in said.refusals] == ([] if CASES[function] else ["in-place"])


def test_the_call_stands_in_front_of_the_write():
    graphs = []

    def backend(module, example_inputs):
        run = onepass_backend(module, example_inputs, options={"strict": True, "inner": "eager"})
        graphs.append([str(n.target) for n in module.graph.nodes if n.op != "placeholder"])
        return run

    torch.compile(scores_of_a_view, backend=backend)(*arguments())
    (order,) = graphs
    assert order.index("onepass.region.default") < next(k for k, target in enumerate(order) if "setitem" in target)
