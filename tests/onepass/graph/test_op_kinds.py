"""The table of operations is total: what may lie inside of a region has terms, and what has terms has a row."""

import pytest
import torch

from onepass.graph.op_kinds import ATEN, BORDERS, OPERATIONS, Trait, kind_of, operation_named
from onepass.graph.program import GETITEM
from onepass.translate.translate import HANDLERS, MODULES


def name_of_target(target: str) -> str:
    return target if target == GETITEM else target.split(".")[1]


HANDLED = {name_of_target(target) for target in HANDLERS}


@pytest.mark.parametrize("row", [row for row in ATEN if row.kind not in BORDERS], ids=lambda row: row.names[0])
def test_every_row_that_is_no_border_has_a_handler(row):
    assert row.names[0] in HANDLED


@pytest.mark.parametrize("name", sorted(HANDLED))
def test_every_handler_has_a_row(name):
    assert name in OPERATIONS


def test_a_name_is_in_one_row():
    assert sum(len(row.names) for row in ATEN) == len(OPERATIONS) > 200


def test_every_row_is_of_an_operator_or_a_border():
    inside = [row.names[0] for row in ATEN if row.kind not in BORDERS and row.names[0] != GETITEM]
    namespaces = (torch.ops.aten, torch.ops.prims, torch.ops.onepass)
    assert [n for n in inside if not any(hasattr(namespace, n) for namespace in namespaces)] == []


def test_every_trait_is_one_of_some_operation():
    assert [t for t in Trait if not any(t in row.traits for row in ATEN)] == []


def test_every_module_of_handlers_has_some():
    assert all(len(module.handles) > 0 for module in MODULES)
    assert sum(len(module.handles) for module in MODULES) == len(HANDLERS)


def test_an_unknown_name_is_a_border():
    assert operation_named("my_attention").kind == "other"
    graph = torch.fx.Graph()
    assert kind_of(graph.placeholder("x")) == "other"


@pytest.mark.parametrize(
    ("call", "other"),
    [
        (torch.multiply, torch.mul),
        (torch.divide, torch.div),
        (torch.less, torch.lt),
        (torch.less_equal, torch.le),
        (torch.greater, torch.gt),
        (torch.greater_equal, torch.ge),
        (torch.not_equal, torch.ne),
        (lambda a, b: torch.absolute(a - b), lambda a, b: torch.abs(a - b)),
    ],
)
def test_a_second_name_of_an_operator_has_the_terms_of_the_first(call, other):
    from onepass.graph.trace import program_of
    from onepass.translate.translate import pulled

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    assert pulled(program_of(lambda x, y: call(x, y), x, y)) == pulled(program_of(lambda x, y: other(x, y), x, y))
