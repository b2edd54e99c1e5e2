"""A Hopper GPU that is not there: launchers make the texts that it would run, for tensors on a CPU.

Nothing is compiled or launched. Example: `pretend_hopper(monkeypatch)`, then `hopper_texts(plan, tensors)`.
"""

from types import SimpleNamespace

import torch

from onepass.compiler.verified_kernels import checks, factors
from onepass.lowering.gluon import launch as gluon_launch
from onepass.lowering.gluon.launch import GluonLauncher
from onepass.lowering.hopper import kernel_class
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.joined import launch as joined_launch
from onepass.lowering.masks import block_map
from onepass.lowering.triton.launch_texts import launch_texts
from onepass.proofs.texts.check import differences


def pretend_hopper(monkeypatch, multiprocessors=3, maps=False):
    """maps: tiles are listed in memory also where they are few."""
    for module in (gluon_launch, joined_launch):
        monkeypatch.setattr(module, "architecture", lambda device: "sm_90")
    for module in (gluon_launch, joined_launch, kernel_class) if maps else ():
        monkeypatch.setattr(module, "pays", lambda *given: True)
    if maps:
        monkeypatch.setattr(block_map, "MIN_TILES", 1)
    known = SimpleNamespace(multi_processor_count=multiprocessors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)


def hopper_texts(plan, tensors, config: HopperConfig | None = None, plain: str = "no kernel"):
    """The texts of a plan's kernels in Hopper's own form, by default or given settings.

    plain: what names of kernels begin with that may be plain Triton.
    """
    configs = {kernel.name: config for kernel in plan.kernels} if config else None
    launcher = GluonLauncher(plan, hopper_configs=configs)
    texts = launch_texts(launcher, tensors, {})
    assert not {name for name in launcher.refusals if not name.startswith(plain)}, launcher.refusals
    return texts


def hold(texts):
    """Asserts that the texts compute their terms, over exact numbers."""
    for factor in factors(texts):
        for one, checked in checks(texts, 2**60, factor):
            assert not [f"{one.kernel.name}: {said}" for said in differences(checked)]
