"""What an installed onepass is: the wheel and the source archive hold everything, and nothing else leaks.

The folders of the checkout are not the packages that users import, so both archives are built from a copy of the tree,
the wheel from the source archive, and the wheel is looked at from a process that stands elsewhere.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("egraph", "rules", "proofs", "lowering")
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build", "dist", "shared"
)


@dataclass(frozen=True)
class Built:
    """The two archives as sets of paths, the tree they were built from, and where the wheel was installed."""

    tree: Path
    sdist: frozenset[str]
    wheel: frozenset[str]
    installed: Path
    elsewhere: Path

    def python(self, code: str):
        """What the code prints, as JSON, run where only the installed wheel can be onepass."""
        path = os.pathsep.join(filter(None, [str(self.installed), os.environ.get("PYTHONPATH")]))
        return json.loads(run(sys.executable, "-c", code, cwd=self.elsewhere, env={**os.environ, "PYTHONPATH": path}))


def run(*command, **options) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    space = tmp_path_factory.mktemp("packaging")
    tree, archives, installed, elsewhere = (space / name for name in ("tree", "archives", "installed", "elsewhere"))
    elsewhere.mkdir()
    shutil.copytree(ROOT, tree, ignore=NOT_COPIED)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", archives, tree, cwd=elsewhere)
    wheel, sdist = next(archives.glob("*.whl")), next(archives.glob("*.tar.gz"))
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", installed, wheel, cwd=elsewhere)
    return Built(tree, names_in_sdist(sdist), frozenset(zipfile.ZipFile(wheel).namelist()), installed, elsewhere)


def names_in_sdist(archive: Path) -> frozenset[str]:
    """The files of a source archive, without the folder named after the release."""
    with tarfile.open(archive) as opened:
        return frozenset(str(PurePosixPath(*PurePosixPath(file.name).parts[1:])) for file in opened if file.isfile())


def python_files(tree: Path, *folders: str) -> set[str]:
    return {path.relative_to(tree).as_posix() for folder in folders for path in (tree / folder).rglob("*.py")}


def test_wheel_holds_every_module(built):
    modules = {f"onepass/{name}" for name in python_files(built.tree, *PARTS)} | python_files(built.tree, "onepass")
    assert len(modules) >= len(PARTS) + 1
    assert modules | {"onepass/py.typed"} <= built.wheel


def test_wheel_holds_the_templates_of_pages(built):
    code = "import json, onepass; from onepass.page.page import page; print(json.dumps(page(onepass.Report())))"
    assert "What runs on my GPU?" in built.python(code)


def test_wheel_holds_nothing_but_onepass(built):
    assert {name.split("/")[0].split("-")[0] for name in built.wheel} == {"onepass"}


def test_sdist_can_build_and_test_itself(built):
    sources = python_files(built.tree, *PARTS, "onepass", "tests")
    assert sources | {"LICENSE", "README.md", "Makefile", "pyproject.toml", ".ci/run"} <= built.sdist


def test_installed_parts_come_from_the_wheel(built):
    names = ["onepass", "onepass.egraph", "onepass.rules", "onepass.lowering"]
    files = built.python(
        f"import importlib, json; print(json.dumps([importlib.import_module(name).__file__ for name in {names}]))"
    )
    assert all(Path(file).is_relative_to(built.installed) for file in files), files


def test_torch_finds_the_backend_by_entry_point(built):
    where, value = built.python(
        "import json, importlib.metadata as metadata\n"
        "entry, = metadata.distribution('onepass').entry_points.select(group='torch_dynamo_backends')\n"
        "print(json.dumps([str(metadata.distribution('onepass').locate_file('')), [entry.name, entry.value]]))"
    )
    assert Path(where) == built.installed
    assert value == ["onepass", "onepass:onepass_backend"]


@pytest.mark.parametrize("part", PARTS)
def test_no_part_is_importable_under_its_bare_name(part, built):
    code = f"import json\ntry: import {part}\nexcept ImportError as error: print(json.dumps(error.name))"
    assert built.python(code) == part


def test_a_checkout_finds_its_parts_without_an_installation():
    names = [f"onepass.{part}" for part in PARTS]
    code = f"import importlib.util, json; print(json.dumps([importlib.util.find_spec(n).origin for n in {names}]))"
    isolated = json.loads(run(sys.executable, "-S", "-c", code, cwd=ROOT))
    assert isolated == [str(ROOT / part / "__init__.py") for part in PARTS]


def test_import_reads_none_of_the_big_packages(built):
    big = ["torch", "triton", "egglog", "numpy", "sympy", "rich"]
    loaded = built.python(f"import json, sys, onepass; print(json.dumps([n for n in {big} if n in sys.modules]))")
    assert loaded == []


STATE = """
import json, os, sys, torch, torch._dynamo.config, torch._inductor.config
def state():
    return {
        "inductor": torch._inductor.config.get_config_copy(), "dynamo": torch._dynamo.config.get_config_copy(),
        "environment": dict(os.environ), "path": list(sys.path), "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()), "precision": torch.get_float32_matmul_precision(),
    }
before = state()
import onepass, onepass.egraph, onepass.rules, onepass.lowering
EXTRA
after = state()
print(json.dumps([name for name in before if before[name] != after[name]]))
"""


@pytest.mark.slow
def test_import_changes_no_configuration(built):
    assert built.python(STATE.replace("EXTRA", "")) == []
    assert built.python(STATE.replace("EXTRA", "torch._inductor.config.max_autotune ^= True")) == ["inductor"]
