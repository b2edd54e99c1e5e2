"""How many ways lead through a function, and how many parameters it has.

The number of ways is the cyclomatic complexity, as `radon cc` counts it: 1, and 1 for each branch. Device functions may
have any number of parameters.
"""

import ast

import pytest

from tests.house.tree import LISTED, Source, hold

MOST_WAYS, MOST_PARAMETERS = 15, 7


def has_many_ways(sources, listed=None):
    from radon.complexity import cc_visit_ast

    for source in sources:
        for block in cc_visit_ast(source.tree) if source.part else ():
            if block.letter in "FM":
                key = f"{source.path}:{block.fullname}"
                most, _ = (LISTED["complexity"] if listed is None else listed).get(key, (block.complexity, ""))
                if block.complexity > most:
                    yield f"{key} is more complex than it was: {block.complexity}, not {most}"
                elif block.complexity > MOST_WAYS:
                    yield f"{key} has a cyclomatic complexity of {block.complexity}, more than {MOST_WAYS}"


def has_many_parameters(sources):
    for source in sources:
        for function in source.functions if source.part else ():
            given = function.args
            names = {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)} - {"self", "cls"}
            if len(names) > MOST_PARAMETERS and not is_kernel(function):
                yield f"{source.path}:{function.name} has {len(names)} parameters, more than {MOST_PARAMETERS}"


def is_kernel(function) -> bool:
    return any(ast.unparse(decorator).split("(")[0].endswith("jit") for decorator in function.decorator_list)


def test_functions_have_few_ways_through_them(sources):
    pytest.importorskip("radon")
    found = list(has_many_ways(sources))
    grown = [complaint for complaint in found if "than it was" in complaint]
    assert not grown, "\n".join(grown)
    hold("complexity", found)


def test_functions_have_few_parameters(sources):
    hold("parameters", has_many_parameters(sources))


BRANCHES = "".join(f"    if x == {n}:\n        return {n}\n" for n in range(MOST_WAYS))
NAMES = ", ".join(f"a{n}" for n in range(MOST_PARAMETERS + 1))


def test_many_ways_are_found():
    pytest.importorskip("radon")
    for text in (f"def f(x):\n{BRANCHES}", f"class A:\n  def f(x):\n{BRANCHES}"):
        assert [*has_many_ways([Source("rules/a.py", text)], {})]
        key = "rules/a.py:A.f" if "class" in text else "rules/a.py:f"
        assert "than it was" in next(has_many_ways([Source("rules/a.py", text)], {key: (1, "")}))
    assert not [*has_many_ways([Source("rules/a.py", f"def f(x):\n{BRANCHES[: BRANCHES.rindex('    if')]}")], {})]


def test_many_parameters_are_found():
    assert [*has_many_parameters([Source("rules/a.py", f"def f({NAMES}): ...")])]
    assert [*has_many_parameters([Source("rules/a.py", f"def f(*, {NAMES}): ...")])]
    assert not [*has_many_parameters([Source("rules/a.py", f"def f({NAMES[4:]}): ...")])]
    assert not [*has_many_parameters([Source("lowering/a.py", f"@gluon.jit\ndef f({NAMES}): ...")])]
