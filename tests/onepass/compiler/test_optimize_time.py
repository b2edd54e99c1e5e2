"""How long onepass itself takes, in CPU seconds: for the largest variants, and for more and more distinct regions.

Of several attempts, each with empty caches, the least counts: what else a machine does only adds to a time. Seconds are
those of a reference machine: a fixed piece of work, done before and after each attempt, says how much slower this one
is at the moment. Cores that share their units with another test process take 1.5 times as long, for both alike.
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
SECONDS_OF_THE_REFERENCE = 0.07  # for `reference_work`, on a machine that does nothing else


def reference_work() -> float:
    """CPU seconds of work as a compiler in Python does it: strings, tuples, dictionaries, and sorting them."""
    before = process_time()
    table: dict[tuple[str, int], tuple[str, ...]] = {}
    for number in range(40_000):
        name = f"t{number % 977}"
        table[name, number] = (*table.get((name, number - 977), ())[-3:], name)
    sorted(table, key=lambda key: (key[1] % 1009, key[0]))
    return process_time() - before


def slowness(*seconds: float) -> float:
    """How much longer reference work took than on the reference machine; a faster machine counts as that one."""
    return max(1.0, sum(seconds) / len(seconds) / SECONDS_OF_THE_REFERENCE)


@pytest.fixture
def seconds(tmp_path, monkeypatch):
    """The least CPU time of the rewriting of a function's graph, without Dynamo; what is loaded lazily is loaded."""

    def least(function, inputs) -> float:
        taken = []
        for attempt in range(ATTEMPTS):
            monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / f"{function.__name__} {len(inputs)} {attempt}"))
            torch._dynamo.reset()
            process_state.forget("runners", "regions")
            before, own, after = reference_work(), once(function, inputs), reference_work()
            taken.append(own / slowness(before, after))
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


def test_distinct_layers_take_a_quarter_of_a_second_each_at_most_and_equal_ones_twenty_milliseconds(seconds):
    """A machine that does nothing else needs 0.17 s and 10 ms."""
    few, many = seconds(*alike(2)), seconds(*alike(27))
    assert (many - few) / 25 <= 0.02
    assert seconds(*several(6)) / 6 <= 0.25


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_variants_take_a_second_at_most(name, seconds):
    (variant,) = (v for v in every() if v.name == name)
    assert seconds(variant.function, variant.inputs()) <= 1.0
    assert records.reports()[-1].regions


@pytest.mark.slow
def test_time_is_linear_in_distinct_regions(seconds):
    few, many = seconds(*several(4)), seconds(*several(16))
    assert sum(len(r.regions) for r in records.reports()) == 1 + ATTEMPTS * (4 + 16)
    assert many <= 2 * 4 * few  # squares would take 4 * 4; other work on the machine disturbs either
