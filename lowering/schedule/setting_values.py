"""The values that a search tries for each setting of a kernel's launch, by the setting's name.

Values of a Hopper kernel's settings come from its own record: a new setting is declared there, and it is here.
Example: `config_of({"row_tile": 1 << 40, ...})` raises ValueError, so such settings from a file are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..hopper.config import HopperConfig
from ..plan.device import H200
from ..plan.kernel_config import TritonConfig
from .kernel_time import Config

TRITON, GLUON = "triton", "gluon"
WARPS_OF_A_WARPGROUP = 4
SEARCHED = {f.name: f.metadata["values"] for f in fields(HopperConfig) if len(f.metadata["values"]) > 1}
TRITON_TILES = {
    "row_tile": (64, 128, 256), "loop_tile": (32, 64, 128), "warps": (4, 8), "stages": (1, 2, 3, 4),
}  # fmt: skip
CONSUMERS = sorted(SEARCHED["consumers"])
HOPPER_TILES = {
    "row_tile": tuple(H200.product_rows * n for n in CONSUMERS), "loop_tile": SEARCHED["loop_tile"],
    "warps": tuple(WARPS_OF_A_WARPGROUP * n for n in CONSUMERS), "stages": SEARCHED["stages"],
}  # fmt: skip
OTHERS = [name for name in SEARCHED if name not in ("consumers", "row_buffers", *HOPPER_TILES)]
HOPPER_ONLY = {name: SEARCHED[name] for name in ("row_buffers", *OTHERS)}
NAMES = ("executor", *TRITON_TILES, *HOPPER_ONLY)
SETTINGS = {
    "executor": (TRITON, GLUON),
    **{name: (*TRITON_TILES[name], *HOPPER_TILES[name]) for name in TRITON_TILES},
    **HOPPER_ONLY,
}


def is_tried(settings: Mapping[str, object]) -> bool:
    """Whether each setting has a value that a search tries."""
    return all(name in SETTINGS and value in SETTINGS[name] for name, value in settings.items())


def config_of(settings: Mapping[str, Any]) -> Config:
    """The configuration that settings by name stand for. Raises ValueError for settings that no search tries.

    A tile and an executor must be there; other settings that are missing have their defaults.
    """
    if missing := [name for name in ("executor", *TRITON_TILES) if name not in settings]:
        raise ValueError(f"kept by another version: there is no setting {missing[0]}")
    if not is_tried(settings):
        raise ValueError("a setting has a value that is not tried")
    values = dict(settings)
    tile = {name: values.pop(name) for name in TRITON_TILES}
    if values.pop("executor") == TRITON:
        return TritonConfig(**tile)
    consumers = tile["row_tile"] // H200.product_rows
    return HopperConfig(consumers, tile["loop_tile"], tile["stages"], **values)
