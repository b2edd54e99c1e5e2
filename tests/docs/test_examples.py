"""Every public name has a docstring with an example, and the examples run. The names come from the packages' lists."""

import doctest
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import onepass

pytestmark = pytest.mark.usefixtures("fresh")
PUBLIC_MODULES = (onepass, onepass.testing, onepass.errors)
SKIPPED = {"context_parallel": "many_gpus.md"}  # it needs two processes; tests/docs/test_pages.py runs that page in one
DOCS = Path(__file__).resolve().parents[2] / "docs"


def public() -> dict[str, object]:
    """The public classes and functions by their full names; numbers and texts have no docstring."""
    found = {}
    for module in PUBLIC_MODULES:
        names = getattr(module, "__all__", None) or own_classes(module)
        found |= {f"{module.__name__}.{name}": getattr(module, name) for name in names}
    return {name: value for name, value in found.items() if callable(value)}


def own_classes(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
            and inspect.isclass(value)]  # fmt: skip


PUBLIC = public()


@pytest.mark.parametrize("name", PUBLIC)
def test_its_example_runs(name):
    value = PUBLIC[name]
    module = {"__name__": "__main__"}  # one that can be imported: Dynamo of torch 2.11 does so
    example = doctest.DocTestParser().get_doctest(value.__doc__ or "", module, name, None, 0)
    assert example.examples, f"{name} has no example: lines that begin with >>> in its docstring"
    skipped = all(doctest.SKIP in one.options for one in example.examples)
    assert skipped == (name.rpartition(".")[2] in SKIPPED)
    runner = doctest.DocTestRunner(verbose=False)
    said: list[str] = []
    runner.run(example, out=said.append, clear_globs=False)  # Dynamo still looks at globals that it has seen
    assert runner.failures == 0, "".join(said)


@pytest.mark.parametrize("name, page", SKIPPED.items())
def test_an_example_that_is_skipped_is_on_a_page_that_runs(name, page):
    assert f"onepass.{name}(" in (DOCS / page).read_text(encoding="utf-8")


def test_every_list_of_names_is_read():
    assert {"onepass.explain", "onepass.testing.assert_fused", "onepass.errors.OptionError"} <= {*PUBLIC}
    modules = {name for name in onepass.__all__ if isinstance(getattr(onepass, name), ModuleType)}
    assert {module.__name__.rpartition(".")[2] for module in PUBLIC_MODULES} == {*modules, "onepass"}
