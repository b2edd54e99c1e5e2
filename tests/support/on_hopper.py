"""A Hopper GPU that is not there: launchers make the texts that it would run, for tensors on a CPU.

Nothing is compiled or launched. Example: `pretend_hopper(monkeypatch)`, then `hopper_texts(plan, tensors)`.
"""

from types import SimpleNamespace

import torch

from onepass.lowering.gluon import launch as gluon_launch
from onepass.lowering.gluon.launch import GluonLauncher
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.joined import launch as joined_launch
from onepass.lowering.masks import block_map
from onepass.lowering.triton.launch_texts import launch_texts


def pretend_hopper(monkeypatch, multiprocessors=3, maps=False):
    """maps: tiles are listed in memory also where they are few."""
    for module in (gluon_launch, joined_launch):
        monkeypatch.setattr(module, "architecture", lambda device: "sm_90")
        if maps:
            monkeypatch.setattr(module, "pays", lambda *given: True)
    if maps:
        monkeypatch.setattr(block_map, "MIN_TILES", 1)
    known = SimpleNamespace(multi_processor_count=multiprocessors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)


def hopper_texts(plan, tensors, config: HopperConfig | None = None):
    """The texts of a plan's kernels in Hopper's own form, by default or given settings."""
    configs = {kernel.name: config for kernel in plan.kernels} if config else None
    launcher = GluonLauncher(plan, hopper_configs=configs)
    texts = launch_texts(launcher, tensors, {})
    assert not launcher.refusals, launcher.refusals
    return texts
