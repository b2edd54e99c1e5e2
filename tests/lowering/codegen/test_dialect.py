"""Each operation of the term language has one text, which a dialect makes Triton or Gluon."""

import re
from itertools import combinations

import pytest

from onepass.egraph.terms.ops import OPS, iota, load, make, scaled, stored
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.codegen.dialect import GLUON, TRITON
from onepass.lowering.codegen.ops import FOLDS, HELPERS, SPECIAL_FORMS, TEMPLATES, Names, helpers, operation
from onepass.lowering.codegen.signature import Signature
from onepass.lowering.codegen.tile_writer import STRUCTURAL, TileWriter
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.plan.records import Kernel, NotPlannable

TABLES = (TEMPLATES, SPECIAL_FORMS, STRUCTURAL)
NAME_OF_TRITON = r"\btl\.(?!PropagateNan)"  # Gluon takes the way to propagate NaN from Triton
I = Dim("i", 8)
X = load(Tensor("x", "float32", (8,)), iota(I))
TRUTH = make("lt", (X, X))


def test_every_operation_is_in_exactly_one_table():
    assert {name for table in TABLES for name in table} == set(OPS)
    assert all(not set(one) & set(other) for one, other in combinations(TABLES, 2))


def test_no_text_of_gluon_names_a_function_of_triton():
    templates = [*TEMPLATES.values(), *(text for fold in FOLDS.values() for text in (fold.combine, fold.tile))]
    texts = [GLUON.fill(template, *"abcde", axis=0) for template in templates] + [helpers(" ".join(HELPERS), GLUON)]
    assert any("gl." in text for text in texts)
    assert [text for text in texts if re.search(NAME_OF_TRITON, text) or "triton" in text] == []


@pytest.mark.parametrize("name", sorted({*TEMPLATES, *SPECIAL_FORMS}))
def test_texts_of_both_languages_differ_in_the_name_of_the_module_alone(name):
    operand = {**dict.fromkeys(("not", "and", "or"), TRUTH), "uniform": iota(I)}.get(name, X)
    operands = (TRUTH, X, X) if name == "where" else (operand,) * OPS[name].arity
    node, texts = make(name, operands), list("abcde"[: len(operands)])
    one, other = (operation(node, texts, dialect) for dialect in (TRITON, GLUON))
    assert re.sub(NAME_OF_TRITON, "gl.", one) == other


@pytest.mark.parametrize("node", [scaled(X, X), stored(X, "part0")], ids=lambda node: node.op)
def test_what_no_kernel_writes_is_refused_by_name(node):
    """A weighted value outside of its sum, and what only says that a value is stored: kernels load it."""
    kernel = Kernel("copy", (), I, "i_tile", (), (), (), ())
    writer = TileWriter(kernel, Facts(), [], Signature(Names()), TRITON)
    writer.starts[I] = "start"
    with pytest.raises(NotPlannable, match=f"{node.op} has no text"):
        writer.value(node)
