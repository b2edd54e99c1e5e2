"""State at module level is registered in onepass/process_state.py, so that one `forget` drops all of it.

A container counts as state if it is empty when its module is imported, or if a function of the module writes to it.
Tables that nothing writes to, and memoised pure functions, are no state.
"""

import ast
import importlib

import pytest

from onepass import process_state
from tests.house.tree import Source

WRITING = {
    "add", "append", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "remove", "reverse",
    "setdefault", "sort", "update",
}  # fmt: skip
MAKES_CONTAINERS = {"dict", "list", "set", "Counter", "OrderedDict", "defaultdict", "deque", "WeakKeyDictionary"}
REGISTRY = ("onepass/process_state.py", "_STORES")


def state_of(source: Source) -> set[str]:
    """Names of the module's state: containers that are empty at first, containers and numbers that functions write."""
    values = {name: value for node in source.tree.body for name, value in assigned(node)}
    written = {name for function in source.functions for name in written_by(function)}
    return {name for name, value in values.items() if name in written or is_empty_container(value)}


def assigned(node: ast.stmt):
    """(name, value) of an assignment."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    yield from ((t.id, node.value) for t in targets if isinstance(t, ast.Name) and getattr(node, "value", None))


def is_empty_container(value: ast.expr) -> bool:
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(func=function, args=[]):
            return ast.unparse(function).split(".")[-1] in MAKES_CONTAINERS
        case ast.Call(func=ast.Name(id="registered"), args=[inner, *_]):
            return is_empty_container(inner)
    return False


def written_by(function: ast.AST):
    """Names of globals that a function replaces, or to whose items it writes."""
    local = {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)}
    local |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in ast.walk(function):
        match node:
            case ast.Global(names=names):
                yield from names
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) if name not in local:
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr in WRITING:
                yield from () if name in local else (name,)


def assigns_to_an_import(source: Source):
    """Statements at module level that change what another module owns, as `Kept.store = cache`."""
    imported = {
        a.asname or a.name for n in source.tree.body if isinstance(n, ast.ImportFrom | ast.Import) for a in n.names
    }
    for node in source.tree.body:
        for target in node.targets if isinstance(node, ast.Assign) else []:
            base = target
            while isinstance(base, ast.Attribute | ast.Subscript):
                base = base.value
            if base is not target and isinstance(base, ast.Name) and base.id in imported:
                yield f"{source.path}:{node.lineno} changes {ast.unparse(target)} at import"


def unregistered(source: Source):
    """Complaints on a module of onepass/."""
    module = importlib.import_module(source.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    known = {id(store.values) for store in process_state.stores()}
    for name in sorted(state_of(source)):
        if (source.path, name) != REGISTRY and id(getattr(module, name)) not in known:
            yield f"{source.path}: {name} is state of the process that is not registered"


def test_state_is_registered(sources):
    product = [s for s in sources if s.part == "onepass" and not s.path.endswith("__main__.py")]
    found = [complaint for source in product for complaint in (*unregistered(source), *assigns_to_an_import(source))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text, names",
    [
        ("_KEPT = {}", {"_KEPT"}),
        ("_KEPT: OrderedDict = OrderedDict()", {"_KEPT"}),
        ("_KEPT = registered([], 'reports')", {"_KEPT"}),
        ("_N = [1]\ndef f():\n    _N.append(2)", {"_N"}),
        ("_N = {1: 2}\ndef f(k):\n    _N[k] = 3", {"_N"}),
        ("_n = 0\ndef f():\n    global _n\n    _n += 1", {"_n"}),
        ("_N = {1: 2}\ndef f(k):\n    return _N[k]", set()),
        ("N = [1]\ndef f():\n    N = []\n    N.append(2)", set()),
    ],
)
def test_what_counts_as_state(text, names):
    assert state_of(Source("onepass/a.py", text)) == names


def test_an_assignment_to_another_module_is_found():
    text = "from ..lowering.schedule.schedule_store import Kept\nKept.store = 1"
    assert [*assigns_to_an_import(Source("onepass/a.py", text))]
