"""Convolutions with kernels of one place are products over channels: nn.Conv2d(heads, heads, 1) mixes talking heads.

`is_one_wide` tells them in a graph, for axes.py; registered for translate.py is how their elements are pulled. Others
are refused.
"""

from __future__ import annotations

from torch import fx

from .aten_reductions import contraction, require_floats
from .capture import value_of_node
from .egraph.ops import const, iota
from .kinds import name_of
from .values import convert, element, handles, kind_of

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "convolution")
NEUTRAL = {  # in the order in which they follow a bias; ATen's own has two more before the groups
    "stride": (1,),
    "padding": (0, "valid", "same"),
    "dilation": (1,),
    "transposed": (False,),
    "output_padding": (0,),
    "groups": (1,),
}


def is_one_wide(node: fx.Node) -> bool:
    """Whether a node is a convolution that sums over channels alone, one place at a time."""
    if name_of(node) not in CONVOLUTIONS or len(node.args) < 2:
        return False
    names = [n for n in NEUTRAL if name_of(node) == "convolution" or n not in ("transposed", "output_padding")]
    given = dict(zip(names, node.args[3:])) | {n: node.kwargs[n] for n in names if n in node.kwargs}
    kernel = value_of_node(node.args[1])
    return kernel is not None and set(kernel.shape[2:]) <= {1} and _neutral(given)


def _neutral(given: dict) -> bool:
    each = lambda x: x if isinstance(x, tuple | list) else (x,)
    return all(value in NEUTRAL[name] for name, values in given.items() for value in each(values))


@handles(*(f"aten.{n}.default" for n in CONVOLUTIONS), *(f"aten.{n}.padding" for n in CONVOLUTIONS[:3]))
def convolution(call):
    x, weight, bias = call["input"], call["weight"], call["bias"]
    dtype = require_floats(call, x, weight)
    places = len(weight.shape) - 2
    if {*weight.shape[2:]} - {1} or not _neutral({n: v for n, v in call.arguments.items() if n in NEUTRAL}):
        raise call.refuse("over more than one place")
    binder = call.binder(weight.shape[1])

    def pull(index):
        *batch, channel = index[: len(index) - places]
        read = element(x, (*batch, iota(binder), *index[len(index) - places :]), dtype)
        factor = element(weight, (channel, iota(binder), *[const(0)] * places), dtype)
        result = contraction(call, [read, factor], [binder], dtype)
        return convert(result if bias is None else result + element(bias, (channel,), dtype), kind_of(call.meta.dtype))

    return call.value(pull)
