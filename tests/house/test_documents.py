"""What documents name is there: the paths, modules, commands and links of README.md, docs and every other page.

A path may leave out its first folders: `planning/pipeline.py` for `lowering/planning/pipeline.py`.
"""

import importlib
import re

import pytest

from tests.house.tree import PARTS, ROOT, files

DOCUMENTS = [path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md"))]
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
DOTTED = re.compile(r"(?<!\.)\b(?:onepass|tests)(?:\.\w+)+")  # not torch.ops.onepass
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
ENDINGS = (".py", ".md", ".toml", ".json", ".csv", ".v", ".txt")


def tree() -> set[str]:
    """Every file and folder of the repository, each also without its first folders."""
    found = set()
    for path in files():
        words = path.relative_to(ROOT).parts
        for end in range(1, len(words) + 1):
            found |= {"/".join(words[start:end]) for start in range(end)}
    return found


def names_what_is_not_there(text: str, known: set[str]):
    for span in re.findall(r"`([^`\n]+)`", text):
        for word in span.split():
            in_a_part = "/" in word and word.split("/")[0] in PARTS
            if PATH.fullmatch(word) and (in_a_part or word.endswith(ENDINGS)) and word.strip("/") not in known:
                yield f"{word} is not there"
        for dotted in DOTTED.findall(span):
            if not can_be_had(dotted):
                yield f"{dotted} cannot be imported"
    for dotted in re.findall(r"(?:python3?|\$PYTHON\)) -m ([\w.]+)", text):
        if not can_be_had(dotted):
            yield f"python -m {dotted} cannot be run"
    for link in LINK.findall(text):
        if "://" not in link and link.strip("/").removeprefix("../") not in known:
            yield f"the link to {link} leads nowhere"


def can_be_had(dotted: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    words = dotted.split(".")
    for end in range(len(words), 0, -1):
        try:
            found = importlib.import_module(".".join(words[:end]))
        except ModuleNotFoundError:
            continue
        for word in words[end:]:
            if not hasattr(found, word):
                return False
            found = getattr(found, word)
        return True
    return False


@pytest.fixture(scope="module")
def known() -> set[str]:
    return tree()


@pytest.mark.parametrize("document", sorted(DOCUMENTS))
def test_what_a_document_names_is_there(document, known):
    assert list(names_what_is_not_there((ROOT / document).read_text(encoding="utf-8"), known)) == []


@pytest.mark.parametrize("text", [
    "`lowering/planning/no_such_module.py`", "`no_such_module.py`", "`onepass.no_such_name(f)`",
    "`egraph/no_such_folder/`", "`python -m onepass.no_such_module`", "[page](docs/no_such_page.md)",
    "```\npython -m tests.no_such_module 3\n```",
])  # fmt: skip
def test_what_is_not_there_is_found(text, known):
    assert list(names_what_is_not_there(text, known))


@pytest.mark.parametrize("text", [
    "`planning/planner.py`", "`onepass.explain(f)`", "`onepass.egraph.terms.term`", "`egraph/terms`", "`rows/columns`",
    "`python -m onepass demo`", "[page](docs/gallery.md#causal)", "`test_house.py`", "[elsewhere](https://example.org/a)",
])  # fmt: skip
def test_what_is_there_is_accepted(text, known):
    assert list(names_what_is_not_there(text, known)) == []
