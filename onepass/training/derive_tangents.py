"""The stores of a region's forward mode: a term for the tangent of every result, for given tangents of its inputs.

Invariant: the tangents are those of the region's own terms, by the rules that are proved; a region for which one is
missing raises NotDerived. Example: where v alone has a tangent v', that of softmax(q · k) · v is softmax(q · k) · v'.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..compiler.assumptions import simplifying
from ..egraph.calculus.equations import Laws
from ..egraph.calculus.reverse_mode import Result
from ..egraph.calculus.derivative_certificate import check_tangents
from ..egraph.calculus.tangents import tangents
from ..egraph.derivation import ledger
from ..egraph.derivation.normalize import Normaliser
from ..egraph.terms.term import Tensor, Term
from ..graph.program import Program
from ..lowering.plan.records import Store
from ..rules import ALL, SEPARATED, SHIFT_FREE
from ..translate.translate import Captured
from .derive_backward import NotDerived, derivative_store, free_name, refuse_detached, saying_why_not


@dataclass(frozen=True)
class TangentStores:
    """What forward mode computes beside the results.

    tangents: a store by the number of the result; a result that no given tangent reaches has none. given: the tensor of
    each input's tangent, None where none is given.
    """

    tangents: dict[int, Store]
    given: tuple[Tensor | None, ...]


def tangent_stores(
    program: Program, captured: Captured, given: Sequence[bool], without: Collection[str] = ()
) -> TangentStores:
    """The stores for tangents of the results, where the inputs have tangents as `given` says.

    without: operations that are not to be differentiated. Raises NotDerived.
    """
    taken = {tensor.name for tensor in (*captured.inputs, *(result.output for result in captured.results))}
    pairs = list(zip(captured.inputs, given, strict=True))
    refuse_detached(program, [tensor.name for tensor, g in pairs if g])
    named = {t.name: replace(t, name=free_name(f"tangent_{t.name}", taken)) for t, g in pairs if g}
    terms = _tangents(captured, named, without)
    stores = {
        number: derivative_store("tangent", result.output, term, result.order, taken)
        for number, (term, result) in enumerate(zip(terms, captured.results, strict=True))
        if term is not None
    }
    return TangentStores(stores, tuple(named.get(t.name) for t in captured.inputs))


def _tangents(captured: Captured, given: Mapping[str, Tensor], without: Collection[str]) -> tuple[Term | None, ...]:
    """The tangents by the laws that are proved, their certificate checked. Raises NotDerived."""
    normal = simplifying([result.term for result in captured.results])
    normaliser = Normaliser(normal)
    results = [Result(normaliser.normal(r.term), r.output, r.order, None) for r in captured.results]
    laws = Laws(normal, ledger.proved(SHIFT_FREE), ledger.proved(SEPARATED))
    with saying_why_not("tangents"):
        found = tangents(results, given, laws, without)
        shown = check_tangents(found.certificate, results, given, {rule.name: rule for rule in ledger.proved(ALL)})
    if shown != found.terms:
        raise NotDerived("the certificate shows other tangents")
    return found.terms


