"""What no plan may do: store what reads nothing, or run a loop again where nothing of it differs.

`wasted` names each instance; tests assert that there is none, and models/survey.py prints those of every model.
"""

from __future__ import annotations

from collections.abc import Iterator

from onepass.compiler import compiled_region
from onepass.egraph.terms.term import Term
from onepass.egraph.terms.traversal import reduces, tensors
from onepass.lowering.plan.records import Kernel, Loop, Plan


def wasted(plan: Plan) -> list[str]:
    """One line for each thing that is stored or computed without need."""
    found = [line for kernel in plan.kernels for line in (*_idle_parts(kernel, plan), *_again(kernel))]
    return [*found, *_in_two_kernels(plan)]


def wasted_since_forgotten() -> list[str]:
    """The same of all plans that this process has."""
    return [line for known in compiled_region._BY_KEY.values() for line in wasted(known.plan)]


def _idle_parts(kernel: Kernel, plan: Plan) -> Iterator[str]:
    """A part of positions alone is a table of a costly function; a count is none."""
    for store in kernel.stores:
        if store.output not in plan.outputs and not tensors(store.term) and (reduces(store.term) or not store.order):
            yield f"{kernel.name} stores {store.output.name}, which reads nothing"


def _again(kernel: Kernel) -> Iterator[str]:
    """A loop inside of a loop, or one that is run for every place of a dim that nothing of it has."""
    streamed, done = {loop.dim for loop in kernel.loops}, set()
    places = [d for d in (*kernel.grid, *kernel.tiled) if d.size != 1]
    for loop in kernel.loops:
        needed = {t for body in _bodies(loop) for t in reduces(body)} - done
        inside = [r for r in needed if r.attrs[1] in streamed and r not in done]
        if inside and any(tensors(r) for r in inside):
            yield f"{kernel.name}: a loop over {inside[0].attrs[1]} inside of the one over {loop.dim}"
        reductions = {r for a in loop.accumulators for r in a.reductions}
        dims = frozenset().union(*(r.dims for r in reductions))
        if any(tensors(r) for r in reductions):
            for dim in places:
                if dim not in dims:
                    yield f"{kernel.name}: the loop over {loop.dim} is the same for each {dim}"
        done |= reductions


def _bodies(loop: Loop) -> list[Term]:
    found = [b for a in loop.accumulators for b in (a.gauge, *a.values) if b is not None]
    return [*found, *([] if loop.guard is None else [loop.guard])]


def _in_two_kernels(plan: Plan) -> Iterator[str]:
    """A state whose loop two kernels run: the first might have stored it. That of loaded scores comes with reading."""
    seen: dict[Term, str] = {}
    for kernel in plan.kernels:
        found = [r for loop in kernel.loops for a in loop.accumulators for r in a.reductions]
        for r in (r for r in found if tensors(r) and not _is_of_loads(r)):
            first = seen.setdefault(r, kernel.name)
            if first != kernel.name:
                yield f"{kernel.name} finds the {r.attrs[0]} over {r.attrs[1]} that {first} has found"


def _is_of_loads(r: Term) -> bool:
    """The sum of the weights that loaded scores give."""
    return r.args[0].op == "scaled" and [a.op for a in r.args[0].args] == ["load", "const"]
