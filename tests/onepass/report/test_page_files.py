"""With ONEPASS_REPORT each compiled graph leaves a page, and whatever hinders it is said once and stops nothing."""

import logging
import os
import stat
import subprocess
import sys

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.report import page_files
from onepass.report.page_files import write_page
from onepass.report.records import Report

pytestmark = pytest.mark.usefixtures("fresh")
X = torch.randn(2, 20, 16)


def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def compiled(function):
    return torch.compile(function, backend=onepass_backend, options={"inner": "eager"})


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == page_files.__name__]


def test_each_graph_has_a_page(tmp_path, monkeypatch):
    folder = tmp_path / "new" / "pages"
    monkeypatch.setenv(page_files.VARIABLE, str(folder))
    compiled(attend)(X, X, X)
    compiled(torch.relu)(X)
    first, second = sorted(folder.iterdir())
    line = attend.__code__.co_firstlineno
    assert first.name == f"001-attend_test_page_files.py_{line}-{os.getpid()}.html" and second.name.startswith("002-")
    text = first.read_text()
    assert f"attend (test_page_files.py:{line})" in text and "rescale_weighted_sum" in text
    assert "nothing was found to fuse" in second.read_text()


@pytest.mark.slow
def test_the_pass_of_inductor_writes_them_too(tmp_path, monkeypatch):
    monkeypatch.setenv(page_files.VARIABLE, str(tmp_path / "pages"))
    torch.compile(attend, options={"pre_grad_custom_pass": onepass.GraphPass()})(X, X, X)
    (page,) = (tmp_path / "pages").iterdir()
    assert "Yes: 1 region" in page.read_text()


def test_without_the_variable_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(page_files.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    compiled(attend)(X, X, X)
    assert write_page(Report(), "f") is None and {path.name for path in tmp_path.iterdir()} <= {"cache"}


@pytest.mark.parametrize("kind", ["a file", "read-only", "a page that fails"])
def test_what_cannot_be_written_is_said_once(kind, tmp_path, monkeypatch, caplog):
    folder = tmp_path / "pages"
    if kind == "a file":
        folder.write_text("")
    elif kind == "read-only":
        folder.mkdir()
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
        if os.access(folder, os.W_OK):
            pytest.skip("this user may write everywhere")
    else:
        monkeypatch.setattr(Report, "save", lambda *_: 1 / 0)
    monkeypatch.setenv(page_files.VARIABLE, str(folder))
    caplog.set_level(logging.WARNING, "onepass")
    results = [compiled(attend)(X, X, X), compiled(torch.relu)(X)]
    torch.testing.assert_close(results[0], attend(X, X, X))
    (said,) = warnings(caplog)
    assert str(folder) in said and "no page is written" in said


@pytest.mark.parametrize("name", ["../../escape", "a b/c", "", "<script>", "x" * 300, "ü"])
def test_a_name_is_a_name_of_a_file(name, tmp_path, monkeypatch):
    monkeypatch.setenv(page_files.VARIABLE, str(tmp_path / "pages"))
    path = write_page(Report(), name)
    assert path.parent == tmp_path / "pages" and path.is_file() and "<script>" not in path.name


PROGRAM = """
import torch
def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v
x = torch.randn(2, 20, 16)
print(torch.compile(attend, backend="onepass", options={"inner": "eager"})(x, x, x).shape)
"""


@pytest.mark.slow
def test_any_script_writes_its_pages(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(f"import onepass\n{PROGRAM}".replace('backend="onepass"', "backend=onepass.onepass_backend"))
    environment = {**os.environ, page_files.VARIABLE: str(tmp_path / "pages"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "torch.Size([2, 20, 16])" in done.stdout, done.stderr
    (page,) = (tmp_path / "pages").iterdir()
    assert page.name.startswith("001-attend_program.py_")
