"""Tensors of a subclass were refused as "no tensor inputs"; beside plain ones they were fused, and their class met an
operation that it need not know."""

import pytest
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from onepass import GraphPass
from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


class Wrapped(torch.Tensor):
    """Holds a plain tensor, and knows ATen's operations only."""

    @staticmethod
    def __new__(cls, held):
        kinds = dict(strides=held.stride(), dtype=held.dtype, device=held.device, requires_grad=held.requires_grad)
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, **kinds)

    def __init__(self, held):
        self.held = held

    def __repr__(self):  # a log of what is compiled asks for it
        return "Wrapped"

    def __tensor_flatten__(self):
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Wrapped(inner["held"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function.namespace not in ("aten", "prim"):
            return NotImplemented
        args, kwargs = tree_map(lambda x: x.held if isinstance(x, Wrapped) else x, (args, kwargs or {}))
        return tree_map(lambda x: Wrapped(x) if isinstance(x, torch.Tensor) else x, function(*args, **kwargs))


CALLS = []


class Watched(torch.Tensor):
    """Hears of each function of torch's that is called with it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if not torch.compiler.is_compiling():
            CALLS.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


def attend(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / 3, -1) @ v


def heads():
    return [torch.randn(1, 2, 6, 8) for _ in range(3)]


def compiled(way):
    if way == "pass":
        return torch.compile(attend, options={"joint_custom_pre_pass": GraphPass(strict=True)})
    return torch.compile(attend, backend=onepass_backend, options={"inner": way, "strict": True})


def of_all_graphs(kind):
    """Inductor's code makes subclasses, and Dynamo compiles what they are made by."""
    return [one for found in records.reports() for one in getattr(found, kind)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["eager", "inductor"])
@pytest.mark.parametrize("which", [(0, 1, 2), (0,), (2,)])
def test_the_refusal_names_the_subclass_and_the_way_out(way, which):
    plain = heads()
    given = [Wrapped(x) if k in which else x for k, x in enumerate(plain)]
    with torch.no_grad():
        result = compiled(way)(*given)
    torch.testing.assert_close(result.held, attend(*plain))
    (refusal,) = of_all_graphs("refusals")
    assert not of_all_graphs("regions") and not of_all_graphs("failures")
    assert "is a Wrapped, a subclass of Tensor" in refusal.reason and "GraphPass" in refusal.reason
    assert refusal.kind == "subclass" and refusal.file == __file__


def test_the_pass_behind_the_subclass_fuses():
    plain = heads()
    with torch.no_grad():
        result = compiled("pass")(*map(Wrapped, plain))
    torch.testing.assert_close(result.held, attend(*plain))
    assert len(of_all_graphs("regions")) == 1


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no distributed tensors here")
def test_distributed_tensors_are_named_too():
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh, plain = init_device_mesh("cpu", (1,)), heads()
        with torch.no_grad():
            result = compiled("eager")(*(distribute_tensor(x, mesh, [Shard(1)]) for x in plain))
        torch.testing.assert_close(result.full_tensor(), attend(*plain))
        assert "is a DTensor, a subclass of Tensor" in records.reports()[-1].refusals[0].reason
    finally:
        dist.destroy_process_group()


def _second_call(run, plain, grad):
    """The result, and the calls that a subclass hears of in compiled code."""
    for _ in range(2):
        CALLS.clear()
        result = run(*(x.as_subclass(Watched).requires_grad_(grad) for x in plain))
    return result, [c for c in CALLS if c not in (torch.Tensor.requires_grad_,)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("grad", [False, True])
def test_a_subclass_that_only_hears_of_calls_is_fused_and_hears_of_none(grad):
    """In torch 2.11 compiled code alone lets it hear of each call; then it hears of the region, too."""
    plain = heads()
    _, alone = _second_call(torch.compile(attend, backend="eager"), plain, grad)
    torch._dynamo.reset()
    result, heard = _second_call(compiled("eager"), plain, grad)
    assert (not heard or len(heard) < len(alone)) and isinstance(result, Watched)
    torch.testing.assert_close(result.detach().as_subclass(torch.Tensor), attend(*plain))
    assert len(records.reports()[-1].regions) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", ["eager", "inductor"])
@pytest.mark.parametrize("kind", [torch.nn.Parameter, torch.nn.Buffer])
def test_parameters_and_buffers_are_plain(kind, way):
    plain = heads()
    with torch.no_grad():
        result = compiled(way)(*map(kind, plain))
    torch.testing.assert_close(result, attend(*plain))
    found = records.reports()[-1]
    assert not found.refusals and not found.failures
    assert len(found.regions) == (kind is torch.nn.Buffer)  # products with parameters are layers
