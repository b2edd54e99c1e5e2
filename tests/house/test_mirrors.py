"""A module of the product has a test file that mirrors it: for egraph/terms/term.py, tests/egraph/terms/test_term.py.

A second file of a module has the module's name in front: test_disk_cache_keys.py. What has no file of its own is listed
with the file that tests it.
"""

import re

from tests.house.tree import LISTED, ROOT, Source, hold

TESTED_IN = {path: place for place, paths in LISTED["tested_in"].items() for path in paths}


def has_no_test(sources):
    tests = [s.path for s in sources if re.match(r"tests/(?!issues/).*/test_\w+\.py$", s.path)]
    for source in sources:
        folder, _, name = source.path.rpartition("/")
        if source.part and name not in ("__init__.py", "__main__.py"):
            start = f"tests/{folder}/test_{name.removesuffix('.py')}"
            if not any(path == f"{start}.py" or path.startswith(f"{start}_") for path in tests):
                yield f"{source.path} has no test file {start}.py"


def mirrors_nothing(sources):
    modules = {s.path.removesuffix(".py") for s in sources if s.part}
    for source in sources:
        if match := re.match(r"tests/((?:egraph|proofs|lowering|onepass)(?:/\w+)*)/test_(\w+)\.py$", source.path):
            folder, words = match[1], match[2].split("_")
            if not any(f"{folder}/{'_'.join(words[:k])}" in modules for k in range(1, len(words) + 1)):
                yield f"{source.path} tests no module of {folder}/"


def test_every_module_has_a_test(sources):
    hold("tested_in", has_no_test(sources), TESTED_IN)


def test_every_test_file_is_named_by_a_module(sources):
    assert list(mirrors_nothing(sources)) == []


def test_what_is_listed_names_a_test_that_is_there():
    assert [place for place in LISTED["tested_in"] if not (ROOT / place).exists()] == []


def test_what_mirrors_nothing_is_found():
    term, test = Source("egraph/terms/term.py", ""), Source("tests/egraph/terms/test_term.py", "")
    more = Source("tests/egraph/terms/test_term_printing.py", "")
    assert not [*has_no_test([term, test])] and not [*has_no_test([term, more])]
    assert [*has_no_test([term])] and [*has_no_test([term, Source("tests/egraph/terms/test_terms.py", "")])]
    assert not [*mirrors_nothing([term, test, more])]
    assert [*mirrors_nothing([term, Source("tests/egraph/terms/test_sizes.py", "")])]
