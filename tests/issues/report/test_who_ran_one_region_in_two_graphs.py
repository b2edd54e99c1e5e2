"""A region in a graph with gradients and in one without has one key. Each report said who had run the other, too."""

import pytest
import torch

import onepass

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def reports_of_both(gradients_first: bool):
    torch._dynamo.reset()
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager", "executor": "tiled"})
    given = [torch.randn(2, 3, 40, 16, requires_grad=True) for _ in range(3)]

    def trained():
        compiled(*given).sum().backward()

    def called():
        with torch.no_grad():
            compiled(*given)

    for run in (trained, called) if gradients_first else (called, trained):
        run()
    found = [region for report in onepass.reports() for region in report.regions]
    return found if gradients_first else found[::-1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("gradients_first", [True, False])
def test_each_report_says_who_ran_its_own_graph(gradients_first):
    trained, called = reports_of_both(gradients_first)
    assert trained.backward.startswith("derived") and trained.ran == "tiled" and trained.backward_ran == "tiled"
    assert "no gradient is needed" in called.backward and called.ran == "tiled" and not called.backward_ran
    assert "(backward)" in str(trained) and "(backward)" not in str(called)


def test_a_change_of_who_runs_one_graph_is_not_said_of_the_other():
    _, called = reports_of_both(True)
    onepass.report.records.ran(called.key, "someone else")
    first, second = (region for report in onepass.reports() for region in report.regions)
    assert (first.ran, second.ran) == ("tiled", "someone else")
