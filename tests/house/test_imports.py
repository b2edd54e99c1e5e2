"""Who may import whom, as a table: folders are layers, and each names the folders above its row that it uses.

Imports inside functions and for types count. A folder has 3 to 12 modules and one sentence, which is its docstring.
Its modules import one another without a circle, in at most 8 levels.
"""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.house.tree import PARTS, Source, hold

# Folder: what it may import of its own part. Parts below it may be imported as PARTS_BELOW says.
TABLE = {
    "egraph/terms": "",
    "egraph/rewrite": "terms",
    "egraph/derivation": "terms rewrite",
    "egraph/sampling": "terms rewrite",
    "egraph/search": "terms rewrite derivation",
    "egraph/calculus": "terms rewrite derivation search",
    "egraph": "terms rewrite",
    "rules": "",
    "proofs/algebra": "",
    "proofs/provers": "algebra",
    "proofs/rocq": "algebra provers",
    "proofs": "algebra provers rocq",
    "proofs/kernels": "",
    "proofs/warps": "kernels",
    "proofs/texts": "kernels warps",
    "lowering/plan": "",
    "lowering/readback": "plan",
    "lowering/analysis": "plan",
    "lowering/masks": "plan analysis",
    "lowering/planning": "plan analysis masks",
    "lowering/tiled": "plan analysis masks",
    "lowering/codegen": "plan analysis",
    "lowering/launch": "plan analysis readback",
    "lowering/hopper": "plan analysis masks",
    "lowering/stages": "plan analysis readback",
    "lowering/schedule": "plan analysis hopper",
    "lowering/triton": "plan analysis masks planning codegen launch",
    "lowering/gluon": "plan analysis masks planning codegen launch hopper schedule triton readback",
    "lowering/joined": "plan analysis masks planning codegen launch hopper schedule triton gluon readback",
    "lowering/cost": "plan analysis planning launch hopper schedule triton gluon joined stages",
    "lowering": "plan analysis masks planning tiled codegen launch hopper schedule triton gluon cost joined readback "
    "stages",
    "onepass/wording": "",
    "onepass/page": "wording",
    "onepass/report": "wording page",
    "onepass/graph": "",
    "onepass/regions": "graph",
    "onepass/translate": "graph",
    "onepass/compiler": "graph translate report",
    "onepass/fusion": "graph regions translate compiler",
    "onepass/training": "graph translate report compiler",
    "onepass/runtime": "graph compiler report training",
    "onepass/graph_passes": "report graph regions translate compiler fusion training runtime",
    "onepass/api": "report graph regions translate compiler fusion runtime graph_passes",
    "onepass/integrations": "api",
    "onepass/distributed/laws": "graph regions translate compiler",
    "onepass/distributed": "distributed/laws report graph regions translate compiler training runtime graph_passes",
    "onepass/testing": "report api",
    "onepass/tune": "report graph regions translate compiler fusion runtime graph_passes api",
    "onepass/bench": "report graph regions translate compiler fusion runtime graph_passes api distributed/laws "
    "distributed",
    "onepass/cli": "wording report graph regions translate compiler fusion runtime graph_passes api testing tune bench",
    "onepass": "report compiler api distributed cli testing runtime",  # doors
}
EVERY_FOLDER = "every folder"
PLANS = ("lowering/plan", "lowering/planning", "lowering/analysis", "lowering/masks", "lowering/readback")
EGRAPH = ("egraph", "egraph/terms", "egraph/rewrite", "egraph/derivation", "egraph/search", "egraph/calculus")
PARTS_BELOW = {  # part: folders of lower parts that it may import; tune also searches settings of kernels
    "egraph": (),
    "rules": EGRAPH[:3],
    "proofs": (*EGRAPH, "egraph/sampling", "rules"),
    "lowering": (*EGRAPH, "rules"),
    "onepass": (EVERY_FOLDER, *PLANS),
}
ALSO = dict.fromkeys(("onepass/tune", "onepass/bench"), ("lowering/hopper", "lowering/schedule"))
ALSO |= dict.fromkeys(("onepass/compiler", "onepass/training"), ("lowering/cost",))  # whose estimates choose a plan
ALSO["onepass/compiler"] += ("lowering/stages",)  # a plan in stages holds less memory
# Inductor compiles a region's calls, and what merges states, as it compiles tiles
ALSO |= dict.fromkeys(("onepass/runtime", "onepass/distributed"), ("lowering/tiled",))
# For everyone above.
GROUND = (
    "egraph/forks.py",
    "lowering/source_folder.py",
    "lowering/stage_times.py",
    "onepass/errors.py",
    "onepass/garbage.py",
    "onepass/messages.py",
    "onepass/process_state.py",
    "onepass/states.py",
    "onepass/tested_versions.py",
    "onepass/__init__.py",
)
PACKAGE = "lowering/__init__.py"  # whose files the disk cache hashes
FEWEST, MOST = 3, 12  # modules of a folder
MOST_LEVELS = 8  # of imports inside a folder


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def modules_of(files) -> dict[str, str]:
    """Paths by absolute dotted names."""
    named = {}
    for source in files:
        if source.part:
            dotted = source.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            named[dotted if source.part == "onepass" else f"onepass.{dotted}"] = source.path
    return named


def imported_paths(source: Source, modules: dict[str, str]):
    """Files of the product that a file imports."""
    for found in source.imports:
        words = found.target.split(".")
        path = next((p for k in range(len(words), 0, -1) if (p := modules.get(".".join(words[:k])))), None)
        if path is not None and words[0] == "onepass":
            yield path


def may_import(path: str, other: str) -> bool:
    folder, below = folder_of(path), folder_of(other)
    part, lower = folder.split("/")[0], below.split("/")[0]
    if folder == below or other in GROUND:
        return True
    if part == lower:
        return below in [f"{part}/{name}" for name in TABLE[folder].split()]
    allowed = (*PARTS_BELOW[part], *ALSO.get(folder, ()))
    anywhere = EVERY_FOLDER in allowed and (lower in ("egraph", "rules") or other in ("lowering/executors.py", PACKAGE))
    return below in allowed or anywhere


def breaks_the_table(files):
    modules = modules_of(files)
    for source in files:
        if source.part and folder_of(source.path) in TABLE:
            for other in sorted({*imported_paths(source, modules)}):
                on_demand = other.startswith("proofs/") and source.part != "proofs"  # which test_house.py holds
                if not may_import(source.path, other) and not on_demand:
                    yield source.path, other


def test_the_table_holds(sources):
    found = {*breaks_the_table(sources)}
    assert not found, "\n".join(f"{a} imports {b}" for a, b in sorted(found))


def test_every_folder_is_in_the_table_and_names_folders_before_it(sources):
    folders = {folder_of(s.path) for s in sources if s.part}
    assert folders == set(TABLE)
    order = list(TABLE)
    for folder, names in TABLE.items():
        part = folder.split("/")[0]
        assert all(order.index(f"{part}/{name}") < order.index(folder) for name in names.split()), folder


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("egraph/terms/a.py", "from ..rewrite.rule import Rule"),
        ("lowering/plan/a.py", "def f():\n    from ..analysis import dim_roles"),
        ("onepass/graph/a.py", "from ..report.records import Report"),
        ("onepass/translate/a.py", "from ..lowering.codegen.ops import wrapped"),
        ("proofs/algebra/a.py", "from ..provers import theorems"),
    ],
)
def test_what_breaks_the_table_is_found(path, text, sources):
    assert [*breaks_the_table([*sources, Source(path, text)])]


def test_a_folder_has_few_modules_and_one_sentence(sources):
    for folder in set(TABLE) - set(PARTS):
        inside = [s for s in sources if folder_of(s.path) == folder and not s.path.endswith("__init__.py")]
        (package,) = [s for s in sources if s.path == f"{folder}/__init__.py"]
        assert FEWEST <= len(inside) <= MOST, f"{folder} has {len(inside)} modules"
        assert (ast.get_docstring(package.tree) or "").split("\n")[0].endswith("."), folder


def inside_folders(sources) -> dict[str, dict[str, set[str]]]:
    """For each folder, what each of its modules imports of that folder."""
    modules = modules_of(sources)
    files = [s for s in sources if s.part and not s.path.endswith("__init__.py")]
    graphs: dict[str, dict[str, set[str]]] = {folder_of(s.path): {} for s in files}
    for source in files:
        graph = graphs[folder_of(source.path)]
        beside = {other for other in imported_paths(source, modules) if folder_of(other) == folder_of(source.path)}
        graph[source.path] = {other for other in beside - {source.path} if not other.endswith("__init__.py")}
    return graphs


def has_circles_or_many_levels(sources):
    for folder, graph in inside_folders(sources).items():
        try:
            tuple(TopologicalSorter(graph).static_order())
        except CycleError as error:
            yield f"{folder} has a circle of imports: {' -> '.join(error.args[1])}"
            continue

        @cache
        def level(path: str, graph=graph) -> int:
            return 1 + max((level(other) for other in graph[path]), default=0)

        deepest = max(map(level, graph), default=0)
        if deepest > MOST_LEVELS:
            yield f"{folder} has {deepest} levels of imports, more than {MOST_LEVELS}"


def test_no_circles_and_few_levels_inside_a_folder(sources):
    hold("circles", has_circles_or_many_levels(sources))


@pytest.mark.parametrize("links", [["01", "12", "20"], [f"{n}{n + 1}" for n in range(MOST_LEVELS)]])
def test_circles_and_levels_are_found(links):
    texts = {f"{n}": "" for n in range(MOST_LEVELS + 1)}
    for one, other in links:
        texts[one] += f"from . import m{other}\n"
    assert [*has_circles_or_many_levels([Source(f"rules/m{name}.py", text) for name, text in texts.items()])]
