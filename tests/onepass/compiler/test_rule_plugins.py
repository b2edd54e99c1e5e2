"""Rules shipped by other packages: real small distributions in a folder, found by entry point on request only."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import onepass
from onepass.cli import commands as command
from onepass.compiler.options import OptionError, Options
from onepass.compiler.rule_plugins import installed

ROOT = Path(__file__).resolve().parents[3]
LAWS = """
import onepass
from onepass.egraph.ops import exp, log

@onepass.rule(exact="bitwise")
def twice_negated(x):
    \"\"\"-(-x) = x\"\"\"
    return -(-x), x

@onepass.rule(exact="a zero has no sign")
def negated_difference(a, b):
    \"\"\"-(a - b) = b - a\"\"\"
    return -(a - b), b - a

RULES = [twice_negated, negated_difference]
LATER = "no rule"
"""


def install(folder: Path, package: str, module: str, points: dict[str, str], text: str = LAWS) -> None:
    """What pip leaves behind: the module, and the metadata that names its entry points."""
    (folder / f"{module}.py").write_text(text)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[onepass.rules]\n{lines}")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("laws_of_a", "laws_of_b"):
        sys.modules.pop(name, None)


def names(rules) -> list[str]:
    return [rule.name for rule in rules]


def test_a_list_and_a_single_rule_are_found(folder):
    install(folder, "package-a", "laws_of_a", {"all": "laws_of_a:RULES"})
    assert {package: names(rules) for package, rules in installed().items()} == {
        "package-a": ["twice_negated", "negated_difference"]
    }
    assert installed()["package-a"][0].source.startswith(str(folder / "laws_of_a.py"))


def test_they_are_used_on_request_only(folder):
    install(folder, "package-a", "laws_of_a", {"one": "laws_of_a:twice_negated"})
    assert Options().rules == () and "laws_of_a" not in sys.modules
    assert names(Options(rules="installed").rules) == ["twice_negated"]


def test_they_stand_beside_a_users_own(folder):
    @onepass.rule(exact="bitwise")
    def product_with_one(x):
        """1 · x = x"""
        return 1.0 * x, x

    install(folder, "package-a", "laws_of_a", {"one": "laws_of_a:twice_negated"})
    assert names(Options(rules=[product_with_one, "installed"]).rules) == ["product_with_one", "twice_negated"]


BROKEN = {
    "no module": ({"x": "laws_that_are_not:RULES"}, "does not load: ModuleNotFoundError"),
    "no name": ({"x": "laws_of_a:MISSING"}, "does not load: AttributeError"),
    "no rules": ({"x": "laws_of_a:LATER"}, "neither a rule nor a list of rules"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_entry_point_is_refused_with_its_package(name, folder):
    points, why = BROKEN[name]
    install(folder, "package-a", "laws_of_a", points)
    with pytest.raises(OptionError, match=rf"package package-a, entry point x = .* of group onepass.rules, .*{why}"):
        Options(rules="installed")
    assert Options().rules == (), "nobody who did not ask is disturbed"


def test_a_rule_that_is_refused_at_its_definition_names_package_and_line(folder):
    wrong = LAWS.replace("return -(-x), x", "return -(-x), y")
    install(folder, "package-a", "laws_of_a", {"x": "laws_of_a:RULES"}, wrong.replace("(x)", "(x, y)"))
    with pytest.raises(
        OptionError, match=r"package-a.*RuleError: rule twice_negated \(.*laws_of_a.py:5\): variable 'y'"
    ):
        Options(rules="installed")


def test_two_packages_with_one_name_are_refused(folder):
    for module in ("laws_of_a", "laws_of_b"):
        install(folder, module.replace("laws_of_", "package-"), module, {"x": f"{module}:RULES"})
    with pytest.raises(OptionError, match="packages package-a and package-b both have a rule 'twice_negated'"):
        Options(rules="installed")


PROCESS = """
import json, onepass
from onepass.compiler.options import Options
print(json.dumps([rule.name for rule in Options(rules="installed").rules]))
"""


def test_a_new_process_finds_them(folder):
    install(folder, "package-a", "laws_of_a", {"all": "laws_of_a:RULES"})
    path = os.pathsep.join([str(folder), *sys.path])
    done = subprocess.run([sys.executable, "-c", PROCESS], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    assert json.loads(done.stdout) == ["twice_negated", "negated_difference"], done.stderr.decode()


def test_the_catalogue_shows_them_with_their_verdicts(folder, capsys, fresh):
    install(folder, "package-a", "laws_of_a", {"all": "laws_of_a:RULES"}, WRONG)
    assert command.main(["rules"]) == 0
    assert "twice_negated" not in capsys.readouterr().out
    assert command.main(["rules", "--installed"]) == 1
    said = capsys.readouterr().out
    (line,) = (line for line in said.splitlines() if line.startswith("negated_difference  -(a - b) = b - a"))
    assert "of package package-a" in said and "a zero has no sign" in line and line.endswith("refuted")


# The pytest plugin ----------------------------------------------------------------------------------------------------

USERS_TESTS = """
import pytest
import onepass
from laws_of_a import RULES

@pytest.mark.onepass_rules(RULES)
def test_laws(onepass_rule):
    onepass.testing.assert_rule(onepass_rule)
"""
WRONG = LAWS.replace("return -(a - b), b - a", "return -(a - b), a - b")


def pytest_run(folder: Path, text: str):
    (folder / "conftest.py").write_text('pytest_plugins = "onepass.testing_pytest"\n')
    (folder / "test_users.py").write_text(text)
    path = os.pathsep.join([str(folder), *sys.path])
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "test_users.py"]
    env = {**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.slow
def test_a_list_of_rules_becomes_tests(folder):
    install(folder, "package-a", "laws_of_a", {"all": "laws_of_a:RULES"}, WRONG)
    done = pytest_run(folder, USERS_TESTS)
    assert "test_laws[twice_negated] PASSED" in done.stdout, done.stdout + done.stderr
    assert "test_laws[negated_difference] FAILED" in done.stdout
    assert "rule negated_difference: " in done.stdout and "a = " in done.stdout
    assert "warning" not in done.stdout


@pytest.mark.slow
def test_the_plugin_may_be_named_though_it_is_installed(folder):
    install(folder, "package-a", "laws_of_a", {"all": "laws_of_a:RULES"})
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    with (folder / "laws_of_a-1.0.dist-info" / "entry_points.txt").open("a") as file:
        file.write(f"[pytest11]\n{lines}")
    done = pytest_run(folder, USERS_TESTS)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_a_test_without_rules_is_an_error_that_says_so(folder):
    install(folder, "package-a", "laws_of_a", {"all": "laws_of_a:RULES"})
    done = pytest_run(folder, USERS_TESTS.replace("onepass_rules(RULES)", "onepass_rules([])"))
    assert done.returncode != 0
    assert "test_laws asks for onepass_rule: mark it with" in done.stdout + done.stderr


def test_the_strategies_are_public():
    from hypothesis import find

    from onepass.rules.reductions import factor_out_of_sum

    instance = find(onepass.testing.instances(factor_out_of_sum), lambda instance: True)
    assert instance.rule is factor_out_of_sum
    assert onepass.testing.named_shapes and onepass.testing.hostile_arrays
