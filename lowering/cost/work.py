"""What a kernel computes outside of its loops: instructions of each unit, for all programs together.

A node is computed for each place of its dims that a program has, by every program: what no dim of a node tells apart is
computed again. Example: the square roots of 64 rows, by 128 programs for columns, are 8192 special functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from ...egraph.terms.term import Term
from ..analysis.dim_roles import is_contraction
from ..plan.device import COSTS, Gpu
from ..plan.queries import states_of
from ..schedule.from_loop import product_cost
from .traffic import ProgramTiles


def clocks(launch: ProgramTiles, gpu: Gpu) -> dict[str, float]:
    """Clocks of one multiprocessor at peak rates, by unit: "tensor", "special", "fma"."""
    states = states_of(launch.kernel)
    flops = fma = special = 0.0
    for node in _computed((s.term for s in launch.kernel.written_by(None)), states):
        if node.op == "reduce":
            body = launch.programs * prod(map(launch.extent, node.args[0].dims))
            product = is_contraction(node)
            flops += 2 * body * product * product_cost(node.args[0])
            fma += body * (not product)
            continue
        places = launch.programs * prod(map(launch.extent, node.dims))
        fma += COSTS[node.op][0] * places
        special += COSTS[node.op][1] * places
    return {"tensor": flops / gpu.tensor_flops, "special": special / gpu.special, "fma": fma / gpu.lanes}


def _computed(roots: Iterable[Term], states: set[Term]) -> Iterable[Term]:
    """Nodes below the roots, each once; states are finished, and products of a sum are part of it."""
    seen: set[Term] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen or node in states:
            continue
        seen.add(node)
        if node.dims:  # other numbers are computed once
            yield node
        inside = node.args[0].args if node.op == "reduce" and is_contraction(node) else node.args
        stack += inside
