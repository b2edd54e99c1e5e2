"""Every operation and monoid of the shipped laws has a meaning in Rocq, and every meaning is a definition there."""

import re

from onepass.egraph.terms.ops import MONOIDS, OPS
from onepass.egraph.terms.traversal import subterms
from onepass.proofs.provers.extended_reals import MEANINGS
from onepass.proofs.rocq.compiler import source
from onepass.proofs.rocq.meanings import FOLDS, OPERATIONS, TYPES_OF_NUMBERS
from onepass.proofs.rocq.statements import NAMES
from onepass.rules import ALL

LEAVES = {"var", "const", "reduce", "cast", "iota", "size", "at", "combined"}
DEFINED = {w for m in ("Values", "Folds") for w in re.findall(r"Definition (\w+)|\| (\w+)", source(m)) for w in w}


def test_operations_of_shipped_laws_have_meanings():
    used = {node.op for law in ALL for side in (law.left, law.right) for node in subterms(side)}
    assert used - LEAVES <= OPERATIONS.keys()
    assert FOLDS.keys() == MONOIDS.keys() and OPERATIONS.keys() <= OPS.keys()


def test_an_operation_that_the_provers_know_has_a_meaning_here():
    assert MEANINGS.keys() <= OPERATIONS.keys()


def test_meanings_are_definitions():
    local = {name for name in NAMES if "." not in name} - {"negb", "andb", "orb", "unknown"}
    assert local and local <= DEFINED
    assert {reader for _, reader in TYPES_OF_NUMBERS.values()} - {"Number"} <= DEFINED
