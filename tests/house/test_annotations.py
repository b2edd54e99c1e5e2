"""Public functions and methods have annotations for their parameters and their result; `make lint` checks these.

Exempt are device functions, which Triton compiles, and laws, whose annotations name dimensions.
"""

import ast
from collections import Counter

import pytest

from tests.house.test_complexity import is_kernel
from tests.house.tree import FUNCTIONS, LISTED, Source

LAWS = ("rules/", "proofs/unsound_rules.py")


def lacks_annotations(sources):
    for source in sources:
        if source.part and not source.path.startswith(LAWS):
            for function in public_functions(source.tree):
                missing = not_annotated(function)
                if missing and not is_kernel(function):
                    yield f"{source.path}:{function.name} has no annotation for {', '.join(missing)}"


def public_functions(tree: ast.Module):
    """Functions of a module and methods of its classes whose names have no underscore in front."""
    for node in tree.body:
        inside = node.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_") else [node]
        yield from (n for n in inside if isinstance(n, FUNCTIONS) and not n.name.startswith("_"))


def not_annotated(function) -> list[str]:
    given = function.args
    names = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    missing = [a.arg for a in names if a.annotation is None and a.arg not in ("self", "cls")]
    return missing + ["its result"] * (function.returns is None)


def numbers(sources) -> Counter[str]:
    """How many public functions lack annotations, by folder."""
    return Counter(complaint.split(":")[0].rpartition("/")[0] for complaint in lacks_annotations(sources))


def test_public_functions_are_annotated(sources):
    listed, found = LISTED["unannotated"], numbers(sources)
    more = {folder for folder, number in found.items() if number > listed.get(folder, 0)}
    assert not more, "\n".join(c for c in lacks_annotations(sources) if c.split(":")[0].rpartition("/")[0] in more)
    assert dict(found) == listed, "lower [unannotated] in tests/house/listed.toml"


@pytest.mark.parametrize("path, text, complete", [
    ("lowering/a.py", "def f(x: int) -> int: ...", True), ("lowering/a.py", "def f(x: int): ...", False),
    ("lowering/a.py", "def f(x) -> int: ...", False), ("lowering/a.py", "def _f(x): ...", True),
    ("lowering/a.py", "class A:\n    def f(self, x: int) -> int: ...", True), ("rules/a.py", "def f(s): ...", True),
    ("lowering/a.py", "class A:\n    def f(self, *xs) -> int: ...", False), ("tests/a.py", "def f(s): ...", True),
    ("lowering/a.py", "@gluon.jit\ndef f(x): ...", True), ("lowering/a.py", "class _A:\n    def f(x): ...", True),
])  # fmt: skip
def test_missing_annotations_are_found(path, text, complete):
    assert (not [*lacks_annotations([Source(path, text)])]) == complete
