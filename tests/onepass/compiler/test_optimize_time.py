"""How long onepass itself takes, in CPU seconds: for the largest variants, and for more and more distinct regions.

Of several attempts, each with empty caches, the least counts: what else a machine does only adds to a time.
"""

from time import process_time

import pytest
import torch

from onepass import process_state
from onepass.api.backend import rewrite_module
from onepass.compiler.options import Options
from onepass.report import records
from tests.variants import every

LARGEST = ("invariant points", "Evoformer, rows", "MLA, absorbed", "differential")
pytestmark = pytest.mark.usefixtures("fresh")


ATTEMPTS = 3


@pytest.fixture
def seconds(tmp_path, monkeypatch):
    """The least CPU time of the rewriting of a function's graph, without Dynamo; what is loaded lazily is loaded."""

    def least(function, inputs) -> float:
        taken = []
        for attempt in range(ATTEMPTS):
            monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / f"{function.__name__} {len(inputs)} {attempt}"))
            torch._dynamo.reset()
            process_state.forget("runners", "regions")
            taken.append(once(function, inputs))
        return min(taken)

    once(*several(1))
    return least


def once(function, inputs) -> float:
    taken = []

    def backend(graph, _):
        before = process_time()
        records.record(rewrite_module(graph, Options.read({})))
        taken.append(process_time() - before)
        return graph.forward

    with torch.no_grad():
        torch.compile(function, backend=backend)(*inputs)
    return sum(taken)


def several(count):
    """As many regions, none like another."""

    def attend(q, *biases):
        for number, bias in enumerate(biases):
            q = q + torch.softmax(q @ q.mT * (0.1 + number) + bias, -1) @ q
        return q

    return attend, [torch.randn(2, 17, 8), *(torch.randn(17, 17) for _ in range(count))]


def alike(count):
    """As many regions, all like one another."""

    def attend(q, *biases):
        for bias in biases:
            q = q + torch.softmax(q @ q.mT * 0.1 + bias, -1) @ q
        return q

    return attend, several(count)[1]


def test_distinct_layers_take_a_third_of_a_second_each_at_most_and_equal_ones_twenty_milliseconds(seconds):
    """A machine that does nothing else needs half of both; one whose cores share their units is slower."""
    few, many = seconds(*alike(2)), seconds(*alike(102))
    assert (many - few) / 100 <= 0.02
    assert seconds(*several(20)) / 20 <= 0.3


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_variants_take_a_second_at_most(name, seconds):
    (variant,) = (v for v in every() if v.name == name)
    assert seconds(variant.function, variant.inputs()) <= 1.0
    assert records.reports()[-1].regions


def test_time_is_linear_in_distinct_regions(seconds):
    few, many = seconds(*several(4)), seconds(*several(16))
    assert sum(len(r.regions) for r in records.reports()) == 1 + ATTEMPTS * (4 + 16)
    assert many <= 2 * 4 * few  # squares would take 4 * 4; other work on the machine disturbs either
