"""Tables of defaults: columns bound or equal facts, and the first row that matches counts."""

from dataclasses import dataclass

from onepass.lowering.plan.kernel_config import DefaultRow, TritonConfig, at_most, equal_to, first_match


@dataclass(frozen=True, kw_only=True)
class Row(DefaultRow):
    width: int = at_most()
    kind: str | None = equal_to()
    result: int


TABLE = (Row(width=64, kind="a", result=1), Row(width=128, result=2), Row(kind="b", result=3))


def test_the_first_row_that_matches_counts():
    found = lambda **facts: getattr(first_match(TABLE, facts), "result", None)
    assert found(width=64, kind="a") == 1
    assert found(width=64, kind="b") == found(width=65, kind="a") == 2
    assert found(width=129, kind="b") == 3
    assert found(width=129, kind="a") is None


def test_smaller_configurations_need_less_and_less():
    tried = [*TritonConfig(128, 64, 8, 3).smaller()]
    sizes = [c.row_tile * c.loop_tile for c in tried]
    assert [c.stages for c in tried[:2]] == [2, 1] and sizes == sorted(sizes, reverse=True) and tried[-1].row_tile == 16
