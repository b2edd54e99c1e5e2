"""The plans that are read back while a function is compiled, with what was asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from onepass import process_state
from onepass.api.backend import rewrite_module
from onepass.compiler import compiled_region, optimized
from onepass.compiler.options import Options
from onepass.lowering.plan.records import Plan, Store
from onepass.training import plans as training
from onepass.training import searched_forms, tangent_plans

Asked = tuple[tuple[Store, ...], Plan]
CHECKING = (optimized, searched_forms)  # modules that let plans be read back


@contextmanager
def recorded() -> Iterator[list[Asked]]:
    """What is read back inside of the block."""
    found: list[Asked] = []
    checked = optimized.checked
    assert all(module.checked is checked for module in CHECKING)

    def spy(plan: Plan, asked) -> Plan:
        found.append((tuple(asked), plan))
        return checked(plan, asked)

    try:
        for module in CHECKING:
            module.checked = spy
        yield found
    finally:
        for module in CHECKING:
            module.checked = checked


class _Seen(Exception):
    """The graph was looked at; there is no need to run it."""


def plans_of(function, inputs, derivatives: bool = True, dynamic: bool = False) -> list[Asked]:
    """Every plan of a function that is read back: forward and, if asked for, of its gradients and tangents."""
    process_state.forget()
    torch._dynamo.reset()

    def backend(graph, _):
        rewrite_module(graph, Options.read({"libraries": False}), dry=True)
        raise _Seen

    with recorded() as found, torch.no_grad():
        try:
            torch.compile(function, backend=backend, dynamic=dynamic or None)(*inputs)
        except Exception as error:
            assert "_Seen" in repr(error) or "_Seen" in str(error), error
        for region in [*compiled_region._BY_KEY.values()] if derivatives else []:
            floats = [entry.meta.dtype.startswith(("float", "bfloat")) for entry in region.program.inputs]
            training.training(region.text, floats)
            tangent_plans.tangent_plan(region.text, floats)
    return found
