"""Laws of names: a class name means one thing in the product, and a constant's name says which quantity it is."""

import ast
from collections import defaultdict

import pytest

from tests.house.tree import Source, hold

# Words that say of a number only that it is a bound, or nothing.
EMPTY_WORDS = frozenset(
    "LEAST MOST FEW FEWEST MANY MORE ENOUGH SMALL TINY LITTLE LARGE LARGEST LONG LONGEST WIDE WIDEST NARROW NEAR "
    "NEAREST FAR SLOW SLOWER WORTH ANY ROWS COLUMNS TOGETHER HELD KEPT SAVED SPARE WASTED".split()
)


def shares_a_class_name(sources):
    places = defaultdict(list)
    for source in sources:
        for node in ast.walk(source.tree) if source.part else ():
            if isinstance(node, ast.ClassDef):
                places[node.name].append(source.path)
    for name, paths in sorted(places.items()):
        if len(paths) > 1:
            yield f"{name} is the name of classes in {', '.join(paths)}"


def has_an_empty_name(sources):
    for source in sources:
        for node in source.tree.body if source.part else ():
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and is_number(node.value):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                        if ast.unparse(name).strip("_") in EMPTY_WORDS:
                            yield f"{source.path}:{ast.unparse(name)} does not name the quantity that it bounds"


def is_number(value: ast.expr) -> bool:
    """Whether an expression is made of numbers: `2**16`, `-1e9`, or a tuple of such."""
    if isinstance(value, ast.Tuple):
        return all(map(is_number, value.elts))
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def test_a_class_name_is_defined_once(sources):
    hold("classes", shares_a_class_name(sources))


def test_a_constant_is_named_by_its_quantity(sources):
    hold("constants", has_an_empty_name(sources))


def test_a_class_name_that_is_defined_twice_is_found():
    assert [*shares_a_class_name([Source("rules/a.py", "class A: ..."), Source("egraph/a.py", "class A: ...")])]
    assert not [*shares_a_class_name([Source("rules/a.py", "class A: ..."), Source("tests/a.py", "class A: ...")])]


@pytest.mark.parametrize("line, wrong", [
    ("LEAST = 2", True), ("_FEW = -2.0**15", True), ("MANY, MIN_ROWS = 256, 64", True), ("LONG: int = 3", True),
    ("MIN_ROWS_OF_A_PRODUCT = 16", False), ("ROWS = tuple(range(3))", False), ("LEAST = 'least'", False),
])  # fmt: skip
def test_constants_with_empty_names_are_found(line, wrong):
    assert bool([*has_an_empty_name([Source("rules/a.py", line)])]) == wrong
