"""The stores of a region's forward and backward: what the forward saves, and a term for every gradient.

Invariant: the gradients are those of the region's own terms, by the rules that are proved; a region for which one is
missing raises NotDerived. Example: of softmax(q · k) · v the forward saves the logarithms of its sums of exponentials.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..compiler.assumptions import simplifying
from ..egraph.calculus.certified import GRADIENTS, Asked, Certified, certified
from ..egraph.calculus.derivative_certificate import DerivativeCertificate, check_gradients
from ..egraph.calculus.gradient import Gradients, Laws, gradients
from ..egraph.calculus.reverse_mode import Derivative, Result
from ..egraph.derivation import ledger
from ..egraph.derivation.certificate import Derivation
from ..egraph.derivation.derive import replay
from ..egraph.derivation.normalize import Normaliser
from ..egraph.rewrite.rule import Rule
from ..egraph.terms.ops import cast, make
from ..egraph.terms.term import Dim, Tensor, Term
from ..egraph.terms.traversal import rebuild, tensors
from ..graph.program import Program
from ..lowering.plan.records import Store
from ..rules import ALL, GATHERED, NORMALISED, SHIFT_FREE, SHIFTED_ONCE, SPREAD, TURNED, WEIGHTS_FIRST
from ..translate.translate import Captured, translate
from .not_derived import NotDerived, call_name, saying_why_not
from .torch_derivatives import with_detached_inputs, with_torch_derivatives


@dataclass(frozen=True)
class BackwardStores:
    """What a forward stores and what a backward computes.

    saved: values that the forward stores beside its results. read: numbers of the results that gradients read.
    gradients: a store by the number of the input; an input that no given cotangent reaches has none.
    cotangents: the tensor of each result's cotangent, None where none is given.
    """

    saved: tuple[Store, ...]
    read: tuple[int, ...]
    gradients: dict[int, Store]
    cotangents: tuple[Tensor | None, ...]


@dataclass(frozen=True)
class AskedDerivatives:
    """What derivatives are of: the results in normal form, with the tensors of their cotangents if these are given.

    captured: the chains from the results as they were captured. asked: as `Certified` has it. laws: of the normal form.
    taken: names that have a meaning.
    """

    results: tuple[Result, ...]
    captured: tuple[Derivation, ...]
    asked: Asked
    laws: tuple[Rule, ...]
    taken: set[str]

    @classmethod
    def of(
        cls, captured: Captured, cotangents: Sequence[Tensor | None], asked: Asked, taken: set[str]
    ) -> AskedDerivatives:
        """Those of a region. cotangents: of each result."""
        laws, normaliser = _laws_and_normaliser(captured)
        goals = [normaliser.normal(result.term) for result in captured.results]
        chains = tuple(replay(result.term, normaliser) for result in captured.results)
        parts = zip(captured.results, goals, cotangents, strict=True)
        return cls(tuple(Result(goal, r.output, r.order, g) for r, goal, g in parts), chains, asked, laws, taken)

    def certified(self, mode: str, certificate: DerivativeCertificate, shown: Sequence[Derivative]) -> Certified:
        """What was derived, so that it can be written down. SPREAD and TURNED show what sums of named values are."""
        apart, together = (ledger.proved((*group, *SPREAD)) for group in (SHIFT_FREE, GATHERED))
        laws = Laws(self.laws, apart, together, turned=ledger.proved(TURNED))
        return certified(mode, self.captured, self.results, self.asked, certificate, shown, laws)


def _laws_and_normaliser(captured: Captured) -> tuple[tuple[Rule, ...], Normaliser]:
    """The laws of the results' normal form, and what brings them to it before they are differentiated."""
    laws = simplifying([result.term for result in captured.results])
    # A program that subtracts a maximum before its softmax shifts twice; one shift is made of the two.
    return laws, Normaliser((*laws, *ledger.proved(SHIFTED_ONCE)))


def backward_stores(
    program: Program,
    captured: Captured,
    needed: Sequence[bool],
    given: Sequence[bool],
    without: Collection[str] = (),
) -> BackwardStores:
    """The stores for gradients of the `needed` inputs, where the results have cotangents as `given` says.

    without: operations that are not to be differentiated. Raises NotDerived.
    """
    asked, own = _asked(program, captured, needed, given, without)
    found = _gradients(asked, without)
    numbers = {result.output.name: k for k, result in enumerate(captured.results)}
    inputs = {tensor.name: k for k, tensor in enumerate(captured.inputs)}
    return BackwardStores(
        tuple(Store(attached(s.term, own), s.tensor, s.order) for s in found.saved if s.tensor.name not in numbers),
        tuple(numbers[s.tensor.name] for s in found.saved if s.tensor.name in numbers),
        {inputs[g.tensor.name]: _gradient_store(g, asked.taken, own) for g in found.gradients},
        tuple(result.cotangent for result in asked.results),
    )


def certified_gradients(
    program: Program,
    captured: Captured,
    needed: Sequence[bool],
    given: Sequence[bool],
    without: Collection[str] = (),
) -> Certified:
    """The gradients of `backward_stores`, with a certificate that can be written down. Raises NotDerived."""
    asked, _ = _asked(program, captured, needed, given, without)
    found = _gradients(asked, without)
    return asked.certified(GRADIENTS, found.certificate, found.gradients)


def _asked(
    program: Program, captured: Captured, needed: Sequence[bool], given: Sequence[bool], without: Collection[str]
) -> tuple[AskedDerivatives, Mapping[str, str]]:
    """What gradients are of; and, by its name, of which input each input of detached values has the numbers."""
    taken = {tensor.name for tensor in (*captured.inputs, *(result.output for result in captured.results))}
    wanted = tuple(tensor.name for tensor, n in zip(captured.inputs, needed, strict=True) if n)
    reading = program if without else with_torch_derivatives(program)
    apart = apart_from_detached(reading, wanted, [n for n, g in zip(program.outputs, given, strict=True) if g])
    captured, own = apart or (captured, {})
    cotangents = [_cotangent(r, taken) if g else None for r, g in zip(captured.results, given, strict=True)]
    return AskedDerivatives.of(captured, cotangents, tuple((name, None) for name in wanted), taken), own


def _cotangent(result: Store, taken: set[str]) -> Tensor:
    return replace(result.output, name=free_name(f"grad_{result.output.name}", taken))


def _gradients(asked: AskedDerivatives, without: Collection[str]) -> Gradients:
    """The gradients by the laws that are proved, their certificate checked. Raises NotDerived."""
    free, gathered, first, normalised = map(ledger.proved, (SHIFT_FREE, GATHERED, WEIGHTS_FIRST, NORMALISED))
    laws = Laws(asked.laws, free, gathered, first, normalised=normalised)
    results, wanted = asked.results, [name for name, _ in asked.asked]
    with saying_why_not("gradients"):
        found = gradients(results, wanted, laws, without)
        shown = check_gradients(found.certificate, results, wanted, {rule.name: rule for rule in ledger.proved(ALL)})
    if tuple(shown) != found.gradients:
        raise NotDerived("the certificate shows other gradients")
    return found


def _gradient_store(gradient: Derivative, taken: set[str], own: Mapping[str, str]) -> Store:
    return derivative_store("grad", gradient.tensor, attached(gradient.term, own), gradient.axes, taken)


def attached(term: Term, own: Mapping[str, str]) -> Term:
    """The term with an input itself in place of each that has its numbers: own says which, by their names."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        named = (replace(a, name=own[a.name]) if isinstance(a, Tensor) and a.name in own else a for a in node.attrs)
        return make(node.op, args, tuple(named))

    return rebuild(term, change) if own else term


def derivative_store(kind: str, tensor: Tensor, term: Term, order: tuple[Dim, ...], taken: set[str]) -> Store:
    """The store of a tensor's derivative, in the tensor's dtype. kind: what its name begins with."""
    term = term if term.dtype == tensor.dtype else cast(term, tensor.dtype)
    return Store(term, replace(tensor, name=free_name(f"{kind}_{tensor.name}", taken)), order)


def free_name(name: str, taken: set[str]) -> str:
    """The name, with underscores appended until it is not taken; now it is."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def refuse_detached(program: Program, wanted: Collection[str], results: Collection[str]) -> None:
    """Raises NotDerived for a program that hides from autograd what depends on a wanted input, on the way to results.
    """
    if apart_from_detached(program, wanted, results) is not None:
        raise NotDerived("its result depends on a value inside of it that is detached", "detach")


def apart_from_detached(
    program: Program, wanted: Collection[str], results: Collection[str]
) -> tuple[Captured, Mapping[str, str]] | None:
    """The terms in which detached values are made of inputs of their own, and of which input each has the numbers.

    None where results do not depend on what is hidden. Of a result that is detached itself, as a largest score that is
    only looked at, nothing is hidden. Nor is it where the form without shifts does not read it, as a largest score that
    is subtracted before exponentials.
    """
    if not _hides(program, wanted, results):
        return None
    apart, others = with_detached_inputs(program, wanted)
    captured = translate(apart)
    laws, normaliser = _laws_and_normaliser(captured)
    free = Normaliser((*laws, *ledger.proved(SHIFT_FREE)))
    asked = (r.term for r, name in zip(captured.results, program.outputs, strict=True) if name in results)
    forms = (free.normal(normaliser.normal(term)) for term in asked)
    read = any(tensor.name in others for form in forms for tensor in tensors(form))
    return (captured, others) if read else None


def _hides(program: Program, wanted: Collection[str], results: Collection[str]) -> bool:
    """Whether something that depends on a wanted input is detached on the way to results."""
    needed = {*results}
    for node in reversed(program.nodes):
        needed.update(node.reads if node.name in needed else ())
    reached = {*wanted}
    for node in program.nodes:
        if node.name not in needed or not reached.intersection(node.reads):
            continue
        reached.add(node.name)
        if call_name(node) == "detach":
            return True
    return False
