"""Which layer may import which, how long files and functions may grow, what a module says of itself."""

import ast
import re
import tomllib

import pytest

import onepass
from tests.house.tree import PARTS, ROOT, Source, files, hold

MAY_IMPORT = {
    "egraph": {"egraph"},
    "rules": {"egraph", "rules"},
    "proofs": {"egraph", "rules", "proofs"},
    "lowering": {"egraph", "rules", "lowering"},
    "onepass": {"egraph", "rules", "lowering", "onepass"},
}
# The only ways from run time into proofs, inside functions.
ON_DEMAND = (
    "onepass/cli/commands.py",
    "onepass/compiler/rule_admission.py",
    "onepass/compiler/verified_kernels.py",
)
WHO_IMPORTS = {
    "egglog": ("egraph/search/egglog_bindings.py",),
    "torch": ("lowering/", "onepass/"),
    "triton": ("lowering/",),
}
HELD_OVER_A_FORK = ("threading", "threading.Lock", "threading.RLock", "functools.cached_property")
MAKES_LOCKS = ("egraph/forks.py", "egraph/search/egglog_bindings.py")
FILE_LINES, FUNCTION_LINES = 600, 60
SUMMARY_LINES = range(2, 7)
CALLERS = re.compile(r"\b[Cc]alled (?:\w+ )?by [`\w]+|\b[Uu]sed (?:\w+ )?by (?:the )?[`\w]+")
# Modules that only give names of other modules under a path that users know.
DOORS = ("egraph/ops.py", "onepass/operator.py", "onepass/testing_pytest.py")
# Spelled in two pieces, so that this file does not find itself.
PRIVATE_PLACES = ("/wo" + "rk/", ".lib" + "rary/")


# The laws ------------------------------------------------------------------------------------------------------------


def breaks_the_layers(sources):
    for source in sources:
        for found in source.imports:
            if source.part and found.part and found.part not in MAY_IMPORT[source.part]:
                if not (source.path in ON_DEMAND and found.part == "proofs" and found.inside_function):
                    yield f"{source.path} imports {found.target}: {source.part} is not above {found.part}"


def imports_a_part_absolutely(sources):
    for source in sources:
        for found in source.imports:
            if source.part and found.part and not found.relative:
                yield f"{source.path} imports {found.target} absolutely: a second copy could be loaded"
            elif not source.part and found.target.split(".")[0] in PARTS[:-1]:
                yield f"{source.path} imports {found.target} without onepass before it"


def imports_what_another_owns(sources):
    for source in sources:
        for package in {found.target.split(".")[0] for found in source.imports} & set(WHO_IMPORTS):
            if source.part and not source.path.startswith(WHO_IMPORTS[package]):
                yield f"{source.path} imports {package}, which is for {', '.join(WHO_IMPORTS[package])}"


def holds_locks_over_a_fork(sources):
    for source in sources:
        for found in source.imports:
            if source.part and found.target in HELD_OVER_A_FORK and source.path not in MAKES_LOCKS:
                yield f"{source.path} imports {found.target}: a forked child can take only what egraph/forks.py makes"


def imports_the_solver_twice(sources):
    users = [s.path for s in sources if s.part and any(i.target.split(".")[0] == "ortools" for i in s.imports)]
    if len(users) > 1:
        yield f"ortools is imported by {' and '.join(users)}: one module is enough"


def is_too_long(sources):
    for source in sources:
        lines = source.text.count("\n")
        if lines > FILE_LINES:
            yield f"{source.path} has {lines} lines, more than {FILE_LINES}"
        for function in source.functions:
            lines = function.end_lineno - function.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{source.path}:{function.lineno} {function.name} has {lines} lines, more than {FUNCTION_LINES}"


def says_too_little_or_too_much(sources):
    for source in sources:
        summary = [line for line in (ast.get_docstring(source.tree) or "").splitlines() if line.strip()]
        tiny = source.path.endswith("__init__.py") and not source.functions and len(source.text.splitlines()) <= 3
        fewest = SUMMARY_LINES.start if source.part else 1  # a test file's name says most of it
        if not tiny and not fewest <= len(summary) < SUMMARY_LINES.stop:
            yield f"{source.path} has a docstring of {len(summary)} lines, not {fewest} to {SUMMARY_LINES.stop - 1}"


def says_who_calls_it(sources):
    """Imports say it; a sentence about callers is wrong after the next change."""
    for source in sources:
        for words in CALLERS.findall(" ".join((ast.get_docstring(source.tree) or "").split()) if source.part else ""):
            yield f"{source.path} says in its docstring who calls it: {words}"


def imports_for_side_effects(sources):
    """An import that binds no used name runs a module for what it does; only doors re-export names."""
    for source in sources:
        if source.part and source.path not in DOORS and not source.path.endswith("__init__.py"):
            for number, line in enumerate(source.text.splitlines(), 1):
                if re.search(r"\bfrom \..*# noqa: F401", line):
                    yield f"{source.path} imports a module for its side effects in line {number}"


def is_not_packaged(sources, packages=None):
    if packages is None:
        packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    folders = {source.path.rpartition("/")[0] for source in sources if source.part}
    for folder in sorted(folders.symmetric_difference(packages.values())):
        yield f"{folder} holds Python files and is no package in pyproject.toml, or is one and holds none"


WRONG_SOURCES = [
    (breaks_the_layers, "egraph/a.py", "from ..rules import softmax"),
    (breaks_the_layers, "egraph/a.py", "from .. import rules"),
    (breaks_the_layers, "rules/a.py", "import onepass.lowering.plan"),
    (breaks_the_layers, "proofs/a.py", "from ..lowering.plan import Plan"),
    (breaks_the_layers, "lowering/a.py", "def f():\n    from ..proofs import ledger"),
    (breaks_the_layers, "lowering/deep/a.py", "from ...proofs import ledger"),
    (breaks_the_layers, "lowering/a.py", "from .. import __version__"),
    (breaks_the_layers, "onepass/report.py", "def f():\n    from .proofs import ledger"),
    (breaks_the_layers, "onepass/report.py", "import importlib\nimportlib.import_module('.proofs', 'onepass')"),
    (breaks_the_layers, ON_DEMAND[0], "from ..proofs import ledger"),
    (imports_a_part_absolutely, "rules/a.py", "from onepass.egraph import rule"),
    (imports_a_part_absolutely, "rules/a.py", "import egraph"),
    (imports_a_part_absolutely, "tests/test_a.py", "from egraph.term import Term"),
    (imports_what_another_owns, "egraph/term.py", "import egglog"),
    (imports_what_another_owns, "rules/a.py", "def f():\n    import torch.nn"),
    (imports_what_another_owns, "onepass/a.py", "from triton import language"),
    (holds_locks_over_a_fork, "lowering/a.py", "import threading"),
    (holds_locks_over_a_fork, "onepass/a.py", "from functools import cache, cached_property"),
    (is_too_long, "rules/a.py", "\n" * 601),
    (is_too_long, "rules/a.py", "def f():\n" + "    x = 1\n" * 60),
    (says_too_little_or_too_much, "rules/a.py", "x = 1"),
    (says_too_little_or_too_much, "rules/a.py", '"""One line."""'),
    (says_too_little_or_too_much, "tests/test_a.py", '"""' + "line\n" * 7 + '"""'),
    (says_too_little_or_too_much, "rules/__init__.py", "def f():\n    return 1"),
    (says_who_calls_it, "rules/a.py", '"""Laws.\n\nUsed by\nthe search."""'),
    (imports_for_side_effects, "rules/a.py", "from . import softmax  # noqa: F401"),
    (is_not_packaged, "rules/deep/a.py", "x = 1"),
]
RIGHT_SOURCES = [
    (breaks_the_layers, ON_DEMAND[1], "def prove():\n    from .proofs import ledger"),
    (breaks_the_layers, "lowering/deep/a.py", "from ...egraph.term import Term\nfrom ..plan import Plan"),
    (breaks_the_layers, "tests/test_a.py", "from onepass.proofs import ledger"),
    (imports_a_part_absolutely, "rules/a.py", "from ..egraph import rule\nimport math"),
    (imports_what_another_owns, "egraph/search/egglog_bindings.py", "import egglog"),
    (imports_what_another_owns, "tests/test_a.py", "import torch, triton"),
    (holds_locks_over_a_fork, "lowering/a.py", "from threading import local"),
    (is_too_long, "rules/a.py", "def f():\n" + "    x = 1\n" * 59),
    (says_too_little_or_too_much, "rules/__init__.py", '"""The laws."""'),
    (says_too_little_or_too_much, "rules/a.py", '"""The laws\nof sums."""'),
    (says_who_calls_it, "rules/a.py", '"""Laws.\n\nOne rule is followed by another."""'),
    (imports_for_side_effects, "rules/a.py", "from . import softmax"),
]
WITHOUT_LIST = {law for law, _, _ in WRONG_SOURCES} - {imports_for_side_effects} | {imports_the_solver_twice}


@pytest.mark.parametrize("law", sorted(WITHOUT_LIST, key=lambda law: law.__name__), ids=lambda law: law.__name__)
def test_no_source(law, sources):
    assert {source.part for source in sources} >= set(PARTS), "the tree was not found"
    assert list(law(sources)) == []


def test_few_modules_are_imported_for_their_side_effects(sources):
    hold("side_effects", imports_for_side_effects(sources))


@pytest.mark.parametrize("law, path, text", WRONG_SOURCES)
def test_law_finds_what_is_wrong(law, path, text):
    assert list(law([Source(path, text)]))


@pytest.mark.parametrize("law, path, text", RIGHT_SOURCES)
def test_law_accepts_what_is_right(law, path, text):
    assert list(law([Source(path, text)])) == []


def test_a_second_user_of_the_solver_is_found():
    users = [Source("egraph/a.py", "from ortools.sat import python"), Source("lowering/b.py", "import ortools")]
    assert list(imports_the_solver_twice(users))
    assert not list(imports_the_solver_twice(users[:1]))


def test_every_package_is_listed_where_it_is_mapped():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert sorted(setuptools["packages"]) == sorted(setuptools["package-dir"])


def test_no_file_names_a_private_place():
    found = [
        f"{path.relative_to(ROOT)} contains {place}"
        for path in files()
        for place in PRIVATE_PLACES
        if place.encode() in path.read_bytes()
    ]
    assert found == []


@pytest.mark.parametrize("name", sorted(onepass._HOME))
def test_every_public_name_has_a_home(name):
    assert getattr(onepass, name) is not None


def test_a_name_that_is_not_public_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'fuse'"):
        onepass.fuse  # noqa: B018
