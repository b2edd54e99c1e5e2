"""Plans that classify the tiles of a mask, and plans that pack a mask into bits, made once for each tiling.

The stores come from lowering/masks; they are planned like any other store. Example: `class_plan(tiling)` is a plan with
one kernel that counts what each tile keeps.
"""

from __future__ import annotations

from functools import lru_cache

from ..masks.block_map import Tiling, class_store
from ..masks.mask_bits import WORD, PackedTiling, packed_mask_store
from ..plan.records import Plan
from .planner import plan_stores


@lru_cache(maxsize=128)
def class_plan(tiling: Tiling) -> Plan:
    """The plan of the classes EMPTY, PARTIAL or FULL: int32 [dims..., row blocks, loop blocks]."""
    return plan_stores((class_store(tiling),), held=max(tiling.tile, tiling.row_tile))


@lru_cache(maxsize=128)
def packed_mask_plan(words: PackedTiling) -> Plan:
    """The plan of a packed mask: int32 [dims..., tiles of rows, tiles of the loop, words of a tile]."""
    return plan_stores((packed_mask_store(words),), held=WORD)
