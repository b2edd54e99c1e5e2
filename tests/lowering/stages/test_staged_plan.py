"""Which plans run in stages, and which of them in parts of which dim."""

from dataclasses import replace

from onepass.lowering.executors import ConfiguredExecutor
from onepass.lowering.stages import staged_plan
from onepass.lowering.stages.staged_plan import has_room, staged
from tests.support.stored_products import gradients


def test_parts_are_taken_where_all_at_once_takes_much(monkeypatch):
    staged.cache_clear()
    assert staged(gradients()).parts is None
    monkeypatch.setattr(staged_plan, "MAX_STORED_BYTES", 1 << 18)
    monkeypatch.setattr(staged_plan, "LEAST_OF_A_PART", 64)
    staged.cache_clear()
    what = staged(gradients())
    assert what.parts.size in (320, 640) and what.count < what.parts.size
    assert has_room(gradients(), {}, 1 << 21) and not has_room(gradients(), {}, 0)
    staged.cache_clear()


def test_which_plans_have_no_stages():
    assert staged(gradients(dtype="float32")) is None
    assert staged(replace(gradients(), piece=256)) is None
    assert staged(gradients(columns="n")) is None
    assert not ConfiguredExecutor.in_stages
