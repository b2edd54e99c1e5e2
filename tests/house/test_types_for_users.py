"""A user's program, as pyright sees it: public names have types, a typo is an error, a compiled function keeps its own.

Pyright runs where it or basedpyright is installed; that the names for type checkers are the public ones is always held.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onepass
from onepass import testing
from tests.house.tree import ROOT

PROGRAM = """
import torch
import onepass

def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT, -1) @ v

x = torch.randn(1, 2, 8, 16)
reveal_type(onepass.compile(attention))
reveal_type(onepass.explain(attention, x, x, x))
reveal_type(onepass.explain(attention, x, x, x).regions)
reveal_type(onepass.plan(attention, x, x, x))
reveal_type(onepass.GraphPass())
reveal_type(onepass.reports())
reveal_type(onepass.testing.assert_fused(attention, x, x, x))
reveal_type(onepass.merge)
reveal_type(onepass.rule)
onepass.explian
onepass.testing.assert_fusd

# pyright: reportUndefinedVariable=false
@onepass.rule
def twice(s: "j"):
    return s + s, 2.0 * s
"""
TYPES = [
    "(q: Tensor, k: Tensor, v: Tensor) -> Tensor",
    "Report",
    "tuple[RegionReport, ...]",
    "ServingPlan",
    "GraphPass",
    "tuple[Report, ...]",
    "Report",
    "(*states: State) -> State",
]


@pytest.mark.slow
def test_what_pyright_says_of_a_program(tmp_path):
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # an environment not activated
    checker = shutil.which("pyright", path=beside) or shutil.which("basedpyright", path=beside)
    if checker is None:
        pytest.skip("neither pyright nor basedpyright is installed")
    installed = tmp_path / "site" / "onepass"
    installed.mkdir(parents=True)
    parts = [*(ROOT / "onepass").iterdir(), *(ROOT / p for p in ("egraph", "lowering", "proofs", "rules"))]
    for part in parts:
        (installed / part.name).symlink_to(part)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "pyrightconfig.json").write_text('{"extraPaths": ["site"], "typeCheckingMode": "standard"}')
    command = [checker, "--outputjson", "--pythonpath", sys.executable, "program.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    found = json.loads(ran.stdout)["generalDiagnostics"]
    said = [one["message"].partition(" is ")[2].strip('"') for one in found if one["severity"] == "information"]
    assert said[:-1] == TYPES and said[-1].startswith("(function: ")
    errors = [one["message"] for one in found if one["severity"] == "error"]
    assert len(errors) == 2 and '"explian"' in errors[0] and '"assert_fusd"' in errors[1]


@pytest.mark.parametrize("package", [onepass, testing], ids=lambda package: package.__name__)
def test_names_for_type_checkers_are_the_public_ones(package):
    """Each is imported from the module from which it is loaded on first use."""
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    (block,) = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    named = {}
    for node in block.body:
        for alias in node.names:
            assert alias.asname == alias.name, "`import a as a` says that a name is public"
            named[alias.name] = f"{'.' * (node.level - 1)}{node.module or alias.name}"
    assert named == {name: home.removeprefix(".") for name, home in package._HOME.items()}
