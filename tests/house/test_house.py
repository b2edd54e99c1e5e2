"""The house rules: which layer may import which, how long files and functions may grow, what a module says of itself.

Each rule is a function from sources to complaints. It is run on the tree, where it must find nothing, and on a small
wrong source, where it must find something.
"""

import ast
import statistics
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

import onepass

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("egraph", "rules", "proofs", "lowering", "onepass")
MAY_IMPORT = {
    "egraph": {"egraph"},
    "rules": {"egraph", "rules"},
    "proofs": {"egraph", "rules", "proofs"},
    "lowering": {"egraph", "rules", "lowering"},
    "onepass": {"egraph", "rules", "lowering", "onepass"},
}
# The only ways from run time into proofs, inside functions.
ON_DEMAND = ("onepass/cli/commands.py", "onepass/compiler/rule_admission.py")
WHO_IMPORTS = {
    "egglog": ("egraph/search/egglog_bindings.py",),
    "torch": ("lowering/", "onepass/"),
    "triton": ("lowering/",),
}
HELD_OVER_A_FORK = ("threading", "threading.Lock", "threading.RLock", "functools.cached_property")
MAKES_LOCKS = ("egraph/forks.py", "egraph/search/egglog_bindings.py")
FILE_LINES, FUNCTION_LINES, MEDIAN_BODY_LINES = 600, 60, 10
SUMMARY_LINES = range(2, 7)
# Spelled in two pieces, so that this file does not find itself.
PRIVATE_PLACES = ("/wo" + "rk/", ".lib" + "rary/")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Import:
    """One imported name: `target` is absolute and dotted, `relative` says how it was written."""

    target: str
    relative: bool
    inside_function: bool

    @property
    def part(self) -> str | None:
        """The part of onepass that the target belongs to, or None for the rest of the world."""
        head, *rest = self.target.split(".")
        if head == "onepass":
            return rest[0] if rest and rest[0] in PARTS else "onepass"
        return head if head in PARTS else None


@dataclass(frozen=True)
class Source:
    """A Python file of the tree: its path from the root, and its text."""

    path: str
    text: str

    @property
    def part(self) -> str | None:
        return self.path.split("/")[0] if self.path.split("/")[0] in PARTS else None

    @property
    def package(self) -> list[str]:
        folders = self.path.split("/")[:-1]
        return folders if folders[:1] == ["onepass"] else ["onepass", *folders]

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def imports(self) -> list[Import]:
        return [
            Import(target, relative, inside)
            for node, inside in nodes_with_nesting(self.tree)
            for target, relative in imported_by(node, self.package)
        ]

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, FUNCTIONS)]


def nodes_with_nesting(node: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below this one, each with whether a function encloses it."""
    for child in ast.iter_child_nodes(node):
        yield child, inside
        yield from nodes_with_nesting(child, inside or isinstance(child, FUNCTIONS))


def imported_by(node: ast.AST, package: list[str]) -> Iterator[tuple[str, bool]]:
    """The absolute names that a statement, or import_module("a literal"), imports, each with whether it is relative."""
    match node:
        case ast.Import(names=names):
            yield from ((name.name, False) for name in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            home = absolute("." * level + (module or ""), package)
            yield from ((f"{home}.{name.name}", level > 0) for name in names)
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
            if ast.unparse(function).split(".")[-1].strip("_") in ("import_module", "import"):
                yield absolute(name, package), name.startswith(".")


def absolute(name: str, package: list[str]) -> str:
    level = len(name) - len(name.lstrip("."))
    if level == 0:
        return name
    return ".".join([*package[: len(package) - level + 1], *filter(None, [name.lstrip(".")])])


def files() -> Iterator[Path]:
    """The files of the repository: not what tools leave behind, not what only lies beside a checkout."""
    generated = {"build", "dist", "shared", "__pycache__"}
    for path in sorted(ROOT.rglob("*")):
        folders = path.relative_to(ROOT).parts[:-1]
        hidden = path.name == ".git" or any(f.startswith(".") and f != ".ci" for f in folders)  # a worktree has a file
        if path.is_file() and not hidden and generated.isdisjoint(folders) and ".egg-info" not in "".join(folders):
            yield path


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return sources_of()


def sources_of() -> list[Source]:
    names = [path.relative_to(ROOT).as_posix() for path in files() if path.suffix == ".py"]
    return [Source(name, (ROOT / name).read_text()) for name in names if not name.startswith("tests/golden/")]


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


def has_long_functions_in_the_middle(sources):
    median = statistics.median(body_lines(function) for source in sources for function in source.functions)
    if median > MEDIAN_BODY_LINES:
        yield f"the median function has {median} lines, more than {MEDIAN_BODY_LINES}"


def body_lines(function) -> int:
    """The lines of a function without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def says_too_little_or_too_much(sources):
    for source in sources:
        summary = [line for line in (ast.get_docstring(source.tree) or "").splitlines() if line.strip()]
        tiny = source.path.endswith("__init__.py") and not source.functions and len(source.text.splitlines()) <= 3
        fewest = SUMMARY_LINES.start if source.part else 1  # a test file's name says most of it
        if not tiny and not fewest <= len(summary) < SUMMARY_LINES.stop:
            yield f"{source.path} has a docstring of {len(summary)} lines, not {fewest} to {SUMMARY_LINES.stop - 1}"


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
    (has_long_functions_in_the_middle, "rules/a.py", "def f():\n" + "    x = 1\n" * 11),
    (says_too_little_or_too_much, "rules/a.py", "x = 1"),
    (says_too_little_or_too_much, "rules/a.py", '"""One line."""'),
    (says_too_little_or_too_much, "tests/test_a.py", '"""' + "line\n" * 7 + '"""'),
    (says_too_little_or_too_much, "rules/__init__.py", "def f():\n    return 1"),
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
    (has_long_functions_in_the_middle, "rules/a.py", "def f():\n    '''a\n\nb'''\n" + "    x = 1\n" * 10),
    (says_too_little_or_too_much, "rules/__init__.py", '"""The laws."""'),
    (says_too_little_or_too_much, "rules/a.py", '"""The laws\nof sums."""'),
]
LAWS = sorted({law for law, _, _ in WRONG_SOURCES} | {imports_the_solver_twice}, key=lambda law: law.__name__)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_no_source(law, sources):
    assert {source.part for source in sources} >= set(PARTS), "the tree was not found"
    assert list(law(sources)) == []


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
