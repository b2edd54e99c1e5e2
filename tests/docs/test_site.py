"""The site has every page of docs/, also in its navigation; links lead to pages; where mkdocs is, it is built."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def hooks():
    spec = spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation():
    shown = set(re.findall(r": ([\w.]+\.md)$", CONFIG, re.MULTILINE))
    assert shown == {path.name for path in (ROOT / "docs").glob("*.md")} | set(hooks().OUTSIDE.values())


def test_it_loads_nothing_from_elsewhere():
    assert "font: false" in CONFIG and not re.search(r"extra_(css|javascript)", CONFIG)


@pytest.mark.parametrize(
    ("text", "page", "expected"),
    [
        ("[a](../proofs/README.md)", "limits.md", "[a](proofs.md)"),
        ("[a](docs/limits.md#gradients)", "index.md", "[a](limits.md#gradients)"),
        ("[a](limits.md)", "overview.md", "[a](limits.md)"),
        ("[a](../README.md)", "rules.md", "[a](index.md)"),
        ("[a](ledger.toml)", "proofs.md", "a (`proofs/ledger.toml`)"),
        ("[LICENSE](LICENSE)", "index.md", "LICENSE (`LICENSE`)"),
        ("[a](https://pytorch.org)", "index.md", "[a](https://pytorch.org)"),
        ("[a](#below)", "index.md", "[a](#below)"),
        ("![a picture](docs/passes.svg)", "index.md", "![a picture](passes.svg)"),
    ],
)
def test_links_lead_to_pages_of_the_site(text, page, expected):
    assert hooks().with_links(text, page) == expected


@pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is not installed: pip install .[docs]")
def test_it_is_built(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True)
    assert built.returncode == 0, built.stderr.decode()
    pages = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.html")}
    assert 'id="op201"' in pages["refusals.html"]
    loaded = r'<(?:script|img|link)[^>]+(?:src|href)="https?://'
    assert not [name for name, text in pages.items() if re.search(loaded, text)]
