"""With ONEPASS_CACHE=off, kernels' sources for people were written to a fixed folder below the system's temporary one,
through any link that stood there. Who knew the name could have any file of the user overwritten.
"""

import os
import stat
import tempfile
from pathlib import Path

import pytest
import torch

import onepass
from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.compiler import disk_cache
from onepass.lowering.triton.launch import load

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners"),
]
TEXT = "import triton\n\n\n@triton.jit\ndef twice(x):\n    return x + x\n"


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 3, -1) @ v


def inputs():
    return [torch.randn(1, 2, 16, 16) for _ in range(3)]


def explained():
    process_state.forget("runners", "regions")
    torch._dynamo.reset()
    (kernel,) = onepass.explain(attention, *inputs()).kernels
    return Path(kernel.source) if kernel.source else None


@pytest.fixture
def victim(tmp_path):
    (tmp_path / "precious").write_text("precious")
    return tmp_path / "precious"


@pytest.fixture
def copied():
    """Loads a kernel's text as a new process would; the path of its copy."""
    load.cache_clear()
    yield lambda: Path(load(TEXT, "twice").fn.__code__.co_filename)
    load.cache_clear()


def test_where_nothing_is_kept_nothing_is_written(tmp_path, monkeypatch, copied):
    monkeypatch.setenv("ONEPASS_CACHE", "off")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert explained() is None
    assert copied().name.startswith("<onepass")
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".py"]


def test_explains_source_replaces_a_link_and_leaves_its_target(victim):
    made = explained()
    made.unlink()
    made.symlink_to(victim)
    assert explained() == made and not made.is_symlink() and "def kernel0" in made.read_text()
    assert victim.read_text() == "precious"


def test_a_kernels_copy_replaces_a_link_and_leaves_its_target(victim, copied):
    made = copied()
    made.unlink()
    made.symlink_to(victim)
    load.cache_clear()
    assert copied() == made and made.read_text() == TEXT and not made.is_symlink()
    assert victim.read_text() == "precious"


def test_a_link_in_place_of_our_folder_leads_nowhere(tmp_path, caplog, copied):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    disk_cache.folder().mkdir()
    (disk_cache.folder() / "source").symlink_to(elsewhere)
    assert explained() is None and "not a folder of this user" in caplog.text
    assert copied().name.startswith("<onepass")
    (disk_cache.folder() / "aa").symlink_to(elsewhere)
    assert not disk_cache.write("a" * 40, {})
    assert not list(elsewhere.iterdir())


def test_a_folder_for_debugging_is_written_to_wherever_results_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_DEBUG_DIR", str(tmp_path / "debug"))
    assert explained().parent == tmp_path / "debug"
    monkeypatch.setenv("ONEPASS_CACHE", "off")
    assert explained().parent == tmp_path / "debug"


def test_what_is_made_is_its_users_alone(monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(disk_cache.folder() / "deep" / "down"))
    x = inputs()
    result = torch.compile(attention, backend=onepass_backend, options={"inner": "eager", "executor": "triton"})(*x)
    torch.testing.assert_close(result, attention(*x), rtol=1e-4, atol=1e-5)
    explained()
    made = [disk_cache.folder(), *disk_cache.folder().parents[:2], *disk_cache.folder().rglob("*")]
    assert len(made) > 6 and all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in made)
