"""The sources of the tree as data: paths, texts, imports, functions; and the lists of exceptions to the laws.

A law is a function from sources to complaints. It is run on the tree, where it must find nothing, and on small wrong
sources, where it must find something.
"""

import ast
import os
import tomllib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("egraph", "rules", "proofs", "lowering", "onepass")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Exceptions by law, each with its reason. The lists only shrink.
LISTED = tomllib.loads((Path(__file__).parent / "listed.toml").read_text())


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


def nodes_with_nesting(root: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below this one, each with whether a function encloses it."""
    waiting = [(child, False) for child in ast.iter_child_nodes(root)]
    while waiting:
        node, inside = waiting.pop()
        yield node, inside
        inside = inside or isinstance(node, FUNCTIONS)
        waiting += [(child, inside) for child in ast.iter_child_nodes(node)]


def imported_by(node: ast.AST, package: list[str]) -> Iterator[tuple[str, bool]]:
    """The absolute names that a statement, or import_module("a literal"), imports, each with whether it is relative."""
    match node:
        case ast.Import(names=names):
            yield from ((name.name, False) for name in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            home = absolute("." * level + (module or ""), package)
            yield from ((f"{home}.{name.name}", level > 0) for name in names)
        case ast.Call(
            func=ast.Name(id=function) | ast.Attribute(attr=function), args=[ast.Constant(value=str(name)), *_]
        ) if function.strip("_") in ("import_module", "import"):
            yield absolute(name, package), name.startswith(".")


def absolute(name: str, package: list[str]) -> str:
    level = len(name) - len(name.lstrip("."))
    if level == 0:
        return name
    return ".".join([*package[: len(package) - level + 1], *filter(None, [name.lstrip(".")])])


def files() -> Iterator[Path]:
    """The files of the repository: not what tools leave behind, not what only lies beside a checkout."""
    for folder, below, names in os.walk(ROOT):
        below[:] = sorted(filter(_is_ours, below))  # others, an environment of Python among them, are not looked into
        yield from (Path(folder, name) for name in sorted(names) if name != ".git")  # in a worktree it is a file


def _is_ours(folder: str) -> bool:
    generated = folder in ("build", "dist", "shared", "__pycache__") or folder.endswith(".egg-info")
    return not generated and (not folder.startswith(".") or folder == ".ci")


def sources_of() -> list[Source]:
    names = [path.relative_to(ROOT).as_posix() for path in files() if path.suffix == ".py"]
    return [Source(name, (ROOT / name).read_text()) for name in names if not name.startswith("tests/golden/")]


def hold(law: str, found: Iterable[str], listed: Collection[str] | None = None) -> None:
    """Holds complaints about a law against its list; a complaint begins with its key, up to the first space."""
    listed = LISTED[law] if listed is None else listed
    complaints = {complaint.split(" ")[0]: complaint for complaint in found}
    place = f"[{law}] in tests/house/listed.toml"
    new = [complaint for key, complaint in complaints.items() if key not in listed]
    assert not new, "\n".join([*new, f"Mend it; where something listed was only renamed or moved, mend {place}."])
    obsolete = [f"{place}: {key} is no exception any longer" for key in listed if key not in complaints]
    assert not obsolete, "\n".join(obsolete)
