"""`import onepass` is quick and loads neither torch nor another large package."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_MILLISECONDS = 10  # it takes 2 to 6
TRIES = 5  # the shortest counts, since other processes may run on this machine
LARGE = ("torch", "triton", "numpy", "sympy", "egglog", "z3", "ortools", "hypothesis", "rich")
PROGRAM = f"""
import json, sys, time
start = time.perf_counter()
import onepass
milliseconds = 1000 * (time.perf_counter() - start)
print(json.dumps([milliseconds, [name for name in {LARGE} if name in sys.modules]]))
"""


def imported() -> tuple[float, list[str]]:
    """The milliseconds of the import in a new process, and the large packages that it loads."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    milliseconds, loaded = json.loads(done.stdout)
    return milliseconds, loaded


def test_the_import_is_quick_and_loads_nothing_large():
    tries = [imported() for _ in range(TRIES)]
    assert min(milliseconds for milliseconds, _ in tries) < MAX_MILLISECONDS
    assert all(loaded == [] for _, loaded in tries)


WALK = """
import pkgutil, sys
import onepass
names = [module.name for module in pkgutil.walk_packages(onepass.__path__, "onepass.")]
import onepass.rules
from onepass.egraph.rewrite.rule import Rule
print(len(names), all(name.count("onepass") == 1 for name in names), "onepass.api.backend" in names)
print(onepass.Rule is Rule, all(isinstance(rule, Rule) for rule in onepass.rules.ALL))
print(sorted({sys.modules[name].__file__ for name in ("onepass.egraph", "onepass.rules")}))
"""


def test_a_walk_through_a_checkout_ends_and_finds_each_module_once():
    """As torch walks for TORCH_LOGS=+onepass: it imports each package that it finds."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", WALK], env=environment, capture_output=True, text=True, check=True)
    first, second, third = done.stdout.splitlines()
    count, *found = first.split()
    assert 50 < int(count) < 500 and found == ["True", "True"] and second == "True True"
    assert third == str([str(ROOT / part / "__init__.py") for part in ("egraph", "rules")])
