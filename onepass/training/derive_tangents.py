"""The stores of a region's forward mode: a term for the tangent of every result, for given tangents of its inputs.

Invariant: the tangents are those of the region's own terms, by the rules that are proved; a region for which one is
missing raises NotDerived. Example: where v alone has a tangent v', that of softmax(q · k) · v is softmax(q · k) · v'.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ..egraph.calculus.certified import TANGENTS, Certified, of_results
from ..egraph.calculus.derivative_certificate import check_tangents
from ..egraph.calculus.equations import Laws
from ..egraph.calculus.tangents import Tangents, tangents
from ..egraph.derivation import ledger
from ..egraph.terms.term import Tensor
from ..graph.program import Program
from ..lowering.plan.records import Store
from ..rules import ALL, SEPARATED, SHIFT_FREE
from ..translate.translate import Captured
from .derive_backward import (
    AskedDerivatives,
    derivative_store,
    free_name,
    refuse_detached,
)
from .not_derived import NotDerived, saying_why_not


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
    asked = _asked(program, captured, given)
    found = _tangents(asked, without)
    stores = {
        number: derivative_store("tangent", result.output, term, result.order, asked.taken)
        for number, (term, result) in enumerate(zip(found.terms, captured.results, strict=True))
        if term is not None
    }
    named = _given(asked)
    return TangentStores(stores, tuple(named.get(t.name) for t in captured.inputs))


def certified_tangents(
    program: Program, captured: Captured, given: Sequence[bool], without: Collection[str] = ()
) -> Certified:
    """The tangents of `tangent_stores`, with a certificate that can be written down. Raises NotDerived."""
    asked = _asked(program, captured, given)
    found = _tangents(asked, without)
    return asked.certified(TANGENTS, found.certificate, of_results(found.terms, asked.results))


def _asked(program: Program, captured: Captured, given: Sequence[bool]) -> AskedDerivatives:
    """Raises NotDerived for a program that hides something from autograd."""
    taken = {tensor.name for tensor in (*captured.inputs, *(result.output for result in captured.results))}
    changed = [tensor for tensor, g in zip(captured.inputs, given, strict=True) if g]
    refuse_detached(program, [tensor.name for tensor in changed], program.outputs)
    asked = tuple((t.name, replace(t, name=free_name(f"tangent_{t.name}", taken))) for t in changed)
    return AskedDerivatives.of(captured, [None] * len(captured.results), asked, taken)


def _given(asked: AskedDerivatives) -> dict[str, Tensor]:
    """The tensors of tangents, by the name of the tensor that each is of."""
    return {name: tensor for name, tensor in asked.asked if tensor is not None}


def _tangents(asked: AskedDerivatives, without: Collection[str]) -> Tangents:
    """The tangents by the laws that are proved, their certificate checked. Raises NotDerived."""
    laws = Laws(asked.laws, ledger.proved(SHIFT_FREE), ledger.proved(SEPARATED))
    known = {rule.name: rule for rule in ledger.proved(ALL)}
    with saying_why_not("tangents"):
        found = tangents(asked.results, _given(asked), laws, without)
        shown = check_tangents(found.certificate, asked.results, _given(asked), known)
    if shown != found.terms:
        raise NotDerived("the certificate shows other tangents")
    return found
