"""Why derivatives of a region are not derived, in words that name the user's calls and lines.

A reason comes from terms, whose names the user has not written; it says which operation is at fault, and the program
knows which calls make it. Example: "the derivative of a largest element asks which one it is (amax at model.py:12)".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..egraph.calculus.partials import NotDifferentiable
from ..egraph.derivation.certificate import CertificateError
from ..egraph.forks import cached_property
from ..egraph.terms.term import Term, TermError
from ..egraph.terms.traversal import subterms
from ..errors import OnepassError, Refusal
from ..graph.program import GETITEM, Input, Meta, Program, ProgramNode
from ..translate.translate import pulled


class NotDerived(OnepassError):
    """A region whose derivatives are not derived; the message says why, for the report.

    operation: of a term or of ATen, which cannot be differentiated; empty where no single one is at fault.
    """

    def __init__(self, why: str, operation: str = ""):
        super().__init__(why)
        self.operation = operation


@contextmanager
def saying_why_not(what: str) -> Iterator[None]:
    """Raises NotDerived for what cannot be differentiated, or has no certificate. what: is derived."""
    try:
        yield
    except NotDifferentiable as error:
        raise NotDerived(str(error), error.operation) from error
    except Refusal as error:
        raise NotDerived(str(error)) from error
    except CertificateError as error:
        raise NotDerived(f"no certificate of its {what}: {error}") from error


def why_not(error: Exception, program: Program) -> str:
    """What an error says, with the calls of the program that it is about."""
    operation = getattr(error, "operation", "")
    calls = _Calls(program).that_make(operation) if operation else ()
    said = dict.fromkeys(f"{call_name(node)} at {node.where}" if node.where else call_name(node) for node in calls)
    return f"{error} ({', '.join(said)})" if said else str(error)


def call_name(node: ProgramNode) -> str:
    """What a node calls, in a word: softmax of aten._softmax.default."""
    return node.target.split(".")[-2:][0].lstrip("_")


class _Calls:
    """The calls of a program, each as a term of its own operands."""

    def __init__(self, program: Program):
        self.program = program

    def that_make(self, operation: str) -> Iterator[ProgramNode]:
        """The calls whose term has the operation in it, is that reduction, or which have its name themselves."""
        for node in self.program.nodes:
            if call_name(node) == operation or any(_makes(term, operation) for term in self._terms(node)):
                yield node

    def _terms(self, node: ProgramNode) -> list[Term]:
        """The call's terms, as of a program that makes this call alone; none where it is not understood so."""
        read = dict.fromkeys(node.reads)
        if node.target == GETITEM or any(len(self._metas[name]) != 1 for name in read):
            return []
        inputs = tuple(Input(name, self._metas[name][0], ()) for name in read)
        try:
            return pulled(Program(inputs, (node,), (node.name,)))
        except (Refusal, TermError):
            return []

    @cached_property
    def _metas(self) -> dict[str, tuple[Meta, ...]]:
        made = {node.name: node.metas for node in self.program.nodes}
        return {entry.name: (entry.meta,) for entry in self.program.inputs} | made


def _makes(term: Term, operation: str) -> bool:
    is_reduction = term.op == "reduce" and term.attrs[0] == operation
    return is_reduction or any(node.op == operation for node in subterms(term))
