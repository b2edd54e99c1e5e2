"""Examples of meanings: which points are asked about. `make theory` has Rocq prove them."""

from onepass.egraph.terms.ops import OPS
from onepass.proofs.rocq import examples
from onepass.proofs.rocq.meanings import FOLDS, INTEGER, NUMBER, OPERATIONS

NUMBERS, INTEGERS, REDUCED = map(list, (examples.of_numbers(), examples.of_integers(), examples.of_folds()))


def test_every_operation_of_numbers_has_examples():
    for name, row in OPERATIONS.items():
        if NUMBER in row and OPS[name].meaning is not None and name not in ("where", "scaled"):
            assert any(e.startswith(row[NUMBER].split()[0] + " ") for e in NUMBERS), name
        if INTEGER in row and name != "where":
            assert any(e.startswith(row[INTEGER] + " ") for e in INTEGERS), name


def test_every_reduction_of_numbers_and_states_has_examples():
    for row in FOLDS.values():
        for sort, meaning in row.items():
            assert sort == "bool" or any(meaning in e for e in REDUCED)


def test_examples_say_what_float64_says():
    assert "plus Above Below = Undefined" in NUMBERS and "larger Below (Number 2) = (Number 2)" in NUMBERS
    assert "divide (Number 1) (Number 0) = Undefined" in NUMBERS and "logarithm (Number 0) = Below" in NUMBERS
    assert "Z.div (-7)%Z (2)%Z = (-4)%Z" in INTEGERS and "Z.modulo (7)%Z (-2)%Z = (-1)%Z" in INTEGERS
