"""Without a cache on disk, a process forgot who was faster: graphs that Inductor would run faster kept their plans."""

import pytest
import torch

from onepass import process_state
from onepass.compiler import compiled_region, disk_cache
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.runtime import library_choice
from onepass.runtime.executors import COMPILED
from onepass.runtime.measurements import Measured
from onepass.runtime.runner import Runner
from tests.onepass.runtime.test_library_choice import plain


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("place", ["off", "unwritable"])
def test_a_process_without_a_cache_knows_who_was_faster(place, monkeypatch, tmp_path):
    monkeypatch.setenv("ONEPASS_CACHE", "off" if place == "off" else "/proc/onepass")
    found = compiled_region.make(program_of(plain, *(torch.randn(2, 2, 24, 16) for _ in range(3))), Options())
    runner = Runner(found)
    assert disk_cache.read(found.key) is None and library_choice.share_of_compiled(found) is None
    runner._choose("cpu", (COMPILED, 0.4))
    assert library_choice.share_of_compiled(found) == 0.4 and library_choice.LEFT_TO_INDUCTOR == [runner.region]
    assert Measured.read(found.key).choices == {"cpu": (COMPILED, 0.4)}
    runner.choices["cuda"] = (COMPILED, 0.5)  # a runner's own, which another thread's reader is not to see change
    assert Measured.read(found.key).choices == {"cpu": (COMPILED, 0.4)}
    process_state.forget()
    assert Measured.read(found.key).choices == {}
