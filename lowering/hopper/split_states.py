"""Kernels whose accumulators are too many for one warpgroup, as several that follow one another.

States that share no product are independent: what is stored of the first ones alone is kept in memory, and the kernel
of the others reads it when it stores. Nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...egraph.terms.ops import iota, load
from ...egraph.terms.term import Tensor, Term
from ...egraph.terms.traversal import substitute, subterms
from ..plan.records import Kernel, Plan, Store
from .kernel_form import Binding, bind


def apart(plan: Plan, fits: Callable[[Binding], bool]) -> Plan:
    """The plan with each kernel that does not fit in parts that do; as it was where there are none."""
    kernels = tuple(part for kernel in plan.kernels for part in _parts(kernel, fits))
    return plan if kernels == plan.kernels else replace(plan, kernels=kernels)


def _parts(kernel: Kernel, fits: Callable[[Binding], bool]) -> list[Kernel]:
    binding = bind(kernel)
    if isinstance(binding, str) or fits(binding) or len(binding.steps) < 2:
        return [kernel]
    halves = _halves(kernel, binding)
    bound = [bind(half) for half in halves]
    if not halves or any(isinstance(b, str) for b in bound) or not fits(bound[0]):
        return [kernel]
    rest = _parts(halves[1], fits)
    return [halves[0], *rest] if len(rest) > 1 or fits(bound[1]) else [kernel]


def _halves(kernel: Kernel, binding: Binding) -> list[Kernel]:
    """The first step's states, and the others; nothing where what is stored of the first has no place of its own."""
    (loop,) = kernel.loops
    first = [state for state, _ in binding.steps[0].states]
    own = {r for state in first for r in state.reductions}
    others = {r for state in loop.accumulators if state not in first for r in state.reductions}
    found: dict[Term, Store] = {}
    early, late = [], []
    for store in kernel.stores:
        if not others & set(subterms(store.term)):
            early.append(store)
            continue
        for term in _largest(store.term, own, others):
            found.setdefault(term, _kept(term, store, f"{kernel.name}_part{len(found)}"))
        late.append(store)
    if any(d not in kept.order for kept in found.values() for d in (*kernel.grid, kernel.rows)):
        return []
    known = {term: load(kept.output, *map(iota, kept.order)) for term, kept in found.items()}
    late = [replace(store, term=substitute(store.term, known)) for store in late]
    rest = tuple(state for state in loop.accumulators if state not in first)
    return [
        _part(kernel, "a", replace(loop, accumulators=tuple(first)), [*early, *found.values()]),
        _part(kernel, "b", replace(loop, accumulators=rest), late),
    ]


def _largest(term: Term, own: set[Term], others: set[Term]) -> list[Term]:
    """The largest parts of a term that need states of the first kind and none of the second."""
    inside = set(subterms(term))
    if not own & inside:
        return []
    if not others & inside and term.dtype in ("float32", "float16", "bfloat16"):
        return [term]
    return list(dict.fromkeys(t for a in term.args for t in _largest(a, own, others)))


def _kept(term: Term, store: Store, name: str) -> Store:
    order = tuple(d for d in store.order if d in term.dims)
    return Store(term, Tensor(name, term.dtype, tuple(d.size for d in order)), order)


def _part(kernel: Kernel, suffix: str, loop, stores: list[Store]) -> Kernel:
    bodies = [b for a in loop.accumulators for b in (a.gauge, *a.values) if b is not None]
    bodies += [s.term for s in stores] + ([loop.guard] if loop.guard is not None else [])
    read = [n.attrs[0] for body in bodies for n in subterms(body) if n.op == "load"]
    read += [n.attrs[0] for limit in loop.limits for n in subterms(limit.bound) if n.op == "load"]
    name = f"{kernel.name}{suffix}"
    return replace(kernel, name=name, loops=(loop,), stores=tuple(stores), inputs=tuple(dict.fromkeys(read)))
