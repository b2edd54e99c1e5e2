"""A folder that cannot be written in ONEPASS_CACHE, or a full disk, switched every emitted kernel off. The copy of its
text for people was written without a guard, and the failure counted as the kernel's.
"""

import logging
import os

import pytest
import torch

from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.lowering.triton.launch import load
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 3, -1) @ v


def no_folder(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "file" / "x"))


def switched_off(monkeypatch, tmp_path):
    monkeypatch.setenv("ONEPASS_CACHE", "off")


def full_disk(monkeypatch, tmp_path):
    real = os.fdopen

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, _):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", lambda *given, **named: Full(real(*given, **named)))


def no_debug_folder(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ONEPASS_DEBUG_DIR", str(tmp_path / "file" / "x"))


CASES = [no_folder, switched_off, full_disk, no_debug_folder]


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def region(request, monkeypatch, tmp_path):
    """The report of a region that ran there, in a new process."""
    request.param(monkeypatch, tmp_path)
    load.cache_clear()
    x = [torch.randn(1, 2, 16, 16) for _ in range(3)]
    options = {"inner": "eager", "executor": "triton", "strict": True}
    result = torch.compile(attention, backend=onepass_backend, options=options)(*x)
    torch.testing.assert_close(result, attention(*x), rtol=1e-4, atol=1e-5)
    process_state.forget("runners", "regions")
    yield records.reports()[-1].regions[0]
    load.cache_clear()


@pytest.mark.sampled(1)
def test_the_kernel_runs(region):
    assert region.ran == "triton" and region.notes == ()


@pytest.mark.sampled(1)
def test_and_no_half_written_file_stays(region, tmp_path):
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".tmp"]


TEXT = "import triton\n\n\n@triton.jit\ndef kernel(x):\n    pass\n"


@pytest.mark.parametrize("case", [no_folder, no_debug_folder, full_disk])
def test_a_folder_is_said_once(case, monkeypatch, tmp_path, caplog):
    """Each kernel's copy had a line of its own."""
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "kept"))
    case(monkeypatch, tmp_path)
    with caplog.at_level(logging.WARNING):
        kernels = [load(f"# {case.__name__} {number}\n{TEXT}", "kernel") for number in range(3)]
    assert len({kernel.fn.__code__.co_filename for kernel in kernels}) == 3
    (line,) = [found for found in caplog.messages if "cannot be used" in found]
    assert ("so nothing is kept there: " in line and str(tmp_path) in line) or "No space left" in line
