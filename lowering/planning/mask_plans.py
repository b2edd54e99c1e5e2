"""Plans that classify the tiles of a mask and that pack it into words, made once for each tiling.

What is computed stands in masks/; a plan is made of it as of any store. Example: `class_plan(tiling)` is a plan with
one kernel that counts what each tile keeps.
"""

from __future__ import annotations

from functools import lru_cache

from ..masks.block_map import Tiling, class_store
from ..masks.mask_bits import WORD, Words, word_store
from ..plan.records import Plan
from .planner import plan_stores


@lru_cache(maxsize=128)
def class_plan(tiling: Tiling) -> Plan:
    """Finds EMPTY, PARTIAL or FULL for [dims..., row blocks, loop blocks]."""
    return plan_stores((class_store(tiling),), held=max(tiling.tile, tiling.row_tile))


@lru_cache(maxsize=128)
def word_plan(words: Words) -> Plan:
    """Finds the words of all tiles: int32 [dims..., tiles of rows, tiles of the loop, words of a tile]."""
    return plan_stores((word_store(words),), held=WORD)
