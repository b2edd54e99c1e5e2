"""What the verifiers of planning find in a state that is made wrong by hand."""

from dataclasses import replace

import pytest

from onepass.egraph.terms.ops import iota, load, stored, sum_over
from onepass.egraph.terms.term import Dim, Tensor, Term
from onepass.lowering.plan.records import Store
from onepass.lowering.planning import pipeline
from onepass.lowering.planning.planning_state import KernelShape, Planning
from onepass.lowering.planning.verify import WrongPlanning, verify

I, J, E = Dim("i", 40), Dim("j", 30), Dim("e", 8)
X = load(Tensor("x", "float32", (40, 30)), iota(I), iota(J))
OUT = Tensor("out", "float32", (40,))


def state(term: Term, output: Tensor = OUT, order: tuple[Dim, ...] = (I,), **values) -> Planning:
    return replace(Planning.of([Store(term, output, order)], [term], 256), **values)


def shadowed() -> Term:
    """Σ_j x[i, j] · Σ_e y[e, j] · Σ_j x[i, j]: the innermost sum binds j, which is free in the sum around it."""
    y = load(Tensor("y", "float32", (8, 30)), iota(E), iota(J))
    return sum_over(J, X * sum_over(E, y * sum_over(J, X)))


GOOD = sum_over(J, X)
SHAPE = {"out": KernelShape(I, (), ())}
KERNELS = pipeline.run_passes(state(GOOD)).kernels
WRONG = [
    ("terms", state(X), "the store of out depends on j"),
    ("terms", state(GOOD, Tensor("out", "float32", (40, 40)), (I, I)), "the store of out has 2 axes for the dims i, i"),
    ("terms", state(GOOD * Term("var", attrs=("x",))), "the store of out has the free variables x"),
    ("terms", state(stored(GOOD, "part0")), "the store of out says that part0 is stored, and does not load it"),
    (
        "terms",
        state(sum_over(I, X), order=(J, I), output=Tensor("out", "float32", (30, 40))),
        "the axis i, which a red",
    ),
    ("terms", state(shadowed()), "the store of out has two reductions over j"),
    ("shape", state(GOOD), "the store of out has no shape"),
    ("shape", state(GOOD, shapes={"out": KernelShape(I, (I,), ())}), "the shape of the store of out does not give"),
    ("kernels", state(GOOD, kernels=()), "the store of out is in 0 kernels"),
    ("kernels", state(GOOD, kernels=(*KERNELS, *KERNELS)), "the store of out is in 2 kernels"),
    ("kernels", state(GOOD, kernels=(replace(KERNELS[0], grid=(I,)),)), "kernel0 has i both as grid and as rows"),
    ("kernels", state(GOOD, kernels=(replace(KERNELS[0], rows=None),)), "kernel0 gives i of the store of out no role"),
]


@pytest.mark.parametrize("stage, wrong, message", WRONG)
def test_a_wrong_state_is_found(stage, wrong, message):
    with pytest.raises(WrongPlanning, match=f"after the stage '{stage}' of planning, .*{message}"):
        verify(wrong, stage)


def test_a_store_that_reads_a_later_one_is_found():
    part = Tensor("part0", "float32", (40,))
    reader, writer = Store(load(part, iota(I)), OUT, (I,)), Store(GOOD, part, (I,))
    wrong = Planning.of([reader, writer], [reader.term], 256)
    wrong = replace(wrong, results=("out",), shapes={"out": SHAPE["out"], "part0": SHAPE["out"]})
    verify(replace(wrong, stores=wrong.stores[::-1]), "cuts")
    with pytest.raises(WrongPlanning, match="the store of out reads part0, which is stored later"):
        verify(wrong, "cuts")
    kernels = [
        replace(KERNELS[0], name=s.output.name, stores=(s,), inputs=(part,)[: s is reader]) for s in wrong.stores
    ]
    verify(replace(wrong, kernels=tuple(kernels[::-1])), "kernels")
    with pytest.raises(WrongPlanning, match="out reads part0, which a later kernel stores"):
        verify(replace(wrong, kernels=tuple(kernels)), "kernels")
