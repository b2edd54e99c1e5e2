"""Splits a kernel whose accumulators are too many for one warpgroup into kernels that run one after the other.

States that share no product are independent. The first kernel stores what its states give, and the second one loads it
for its own results; nothing is computed twice. Example: two softmaxes whose results are subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...egraph.terms.ops import iota, load
from ...egraph.terms.term import Tensor, Term
from ...egraph.terms.traversal import substitute, subterms
from ..plan.dtypes import HALVES
from ..plan.records import Kernel, Loop, Plan, Store
from .kernel_form import Binding, bind


def with_split_states(plan: Plan, fits: Callable[[Binding], bool]) -> Plan:
    """The plan in which a kernel that does not fit is split into kernels that do; unchanged if there is no such split.

    fits: whether a warpgroup holds the accumulators of a kernel.
    """
    kernels = tuple(part for kernel in plan.kernels for part in parts_by_states(kernel, fits))
    return plan if kernels == plan.kernels else replace(plan, kernels=kernels)


def parts_by_states(kernel: Kernel, fits: Callable[[Binding], bool]) -> list[Kernel]:
    """The kernels that a kernel is split into; itself where there is no split."""
    binding = bind(kernel)
    if isinstance(binding, str) or fits(binding) or len(binding.steps) < 2:
        return [kernel]
    halves = _halves(kernel, binding)
    bound = [b for b in map(bind, halves) if isinstance(b, Binding)]
    if not halves or len(bound) < len(halves) or not fits(bound[0]):
        return [kernel]
    rest = parts_by_states(halves[1], fits)
    return [halves[0], *rest] if len(rest) > 1 or fits(bound[1]) else [kernel]


def _halves(kernel: Kernel, binding: Binding) -> list[Kernel]:
    """The kernel of the first step's states, and that of the others; none if a state has no place of its own in memory.

    The second kernel loads what the first one stores.
    """
    (loop,) = kernel.loops
    first = tuple(state for state, _ in binding.steps[0].states)
    rest = tuple(state for state in loop.accumulators if state not in first)
    own, others = ({r for state in states for r in state.reductions} for states in (first, rest))
    late = [store for store in kernel.stores if others & set(subterms(store.term))]
    early = [store for store in kernel.stores if store not in late]
    handed = _handed_over(late, own, others, kernel.name)
    if any(not {*kernel.grid, kernel.rows} <= {*store.order} for store in handed.values()):
        return []
    loads = {term: load(store.output, *map(iota, store.order)) for term, store in handed.items()}
    late = [replace(store, term=substitute(store.term, loads)) for store in late]
    return [
        _part(kernel, "a", replace(loop, accumulators=first), [*early, *handed.values()]),
        _part(kernel, "b", replace(loop, accumulators=rest), late),
    ]


def _handed_over(stores: list[Store], own: set[Term], others: set[Term], name: str) -> dict[Term, Store]:
    """What results of both kinds of states need of the first kind, each with its store."""
    found: dict[Term, Store] = {}
    for store in stores:
        for term in _largest(store.term, own, others):
            found.setdefault(term, _kept(term, store, f"{name}_part{len(found)}"))
    return found


def _largest(term: Term, own: set[Term], others: set[Term]) -> list[Term]:
    """The largest parts of a term that need states of the first kind and none of the second."""
    inside = set(subterms(term))
    if not own & inside:
        return []
    if not others & inside and term.dtype in ("float32", *HALVES):
        return [term]
    return list(dict.fromkeys(t for a in term.args for t in _largest(a, own, others)))


def _kept(term: Term, store: Store, name: str) -> Store:
    order = tuple(d for d in store.order if d in term.dims)
    return Store(term, Tensor(name, term.dtype, tuple(d.size for d in order)), order)


def _part(kernel: Kernel, suffix: str, loop: Loop, stores: list[Store]) -> Kernel:
    bodies = [b for a in loop.accumulators for b in (a.gauge, *a.values) if b is not None]
    bodies += [s.term for s in stores] + ([loop.guard] if loop.guard is not None else [])
    read = [n.attrs[0] for body in bodies for n in subterms(body) if n.op == "load"]
    read += [n.attrs[0] for limit in loop.limits for n in subterms(limit.bound) if n.op == "load"]
    name = f"{kernel.name}{suffix}"
    return replace(kernel, name=name, loops=(loop,), stores=tuple(stores), inputs=tuple(dict.fromkeys(read)))
