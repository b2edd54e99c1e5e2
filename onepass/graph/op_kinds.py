"""What kind of node an fx node is, by the name of what it calls: one table for Dynamo's graphs and ATen graphs alike.

A name that is in no list is a border ("other"): regions end there.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import fx

CONTRACTION = "matmul bmm mm mv einsum baddbmm __matmul__ linalg_matmul cdist inner linalg_vecdot tensordot"
ATTENTION = "scaled_dot_product_attention"
REDUCTION = (
    "softmax _softmax _safe_softmax log_softmax _log_softmax special_softmax special_log_softmax logsumexp softmin "
    "amax amin max min sum mean prod any all"
)
VIEW = (
    "transpose permute t mT mH swapaxes swapdims movedim moveaxis adjoint numpy_T view reshape flatten unflatten "
    "unsqueeze squeeze expand expand_as broadcast_to view_as reshape_as _unsafe_view _reshape_alias select slice "
    "narrow getitem repeat tile repeat_interleave split split_with_sizes chunk unbind contiguous clone detach alias "
    "positive flip roll unfold getattr"
)
# Of these, what copies, always or where the layout asks for it.
COPIES = "clone repeat tile repeat_interleave contiguous reshape reshape_as flatten flip roll".split()
POINTWISE = (
    "neg exp exp2 log log2 log1p sqrt rsqrt tanh sigmoid erf sin cos abs floor reciprocal square pow mul multiply "
    "div divide true_divide truediv add sub subtract rsub radd rmul maximum minimum remainder mod floordiv "
    "floor_divide le lt ge gt eq ne less less_equal greater greater_equal not_equal invert bitwise_not logical_not "
    "and_ or_ logical_and logical_or logical_xor bitwise_and bitwise_or __and__ __or__ where masked_fill dropout "
    "clamp clip clamp_min clamp_max relu silu gelu elu leaky_relu softplus log_sigmoid tril triu absolute "
    "nan_to_num isnan isfinite isinf logaddexp "
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__"  # what some releases of Dynamo make of a comparison of two tensors
)
CAST = "to type float half bfloat16 double long int bool type_as _to_copy convert_element_type cpu cuda"
JOIN = "cat concat concatenate pad constant_pad_nd"
CREATION = (
    "ones zeros full arange eye scalar_tensor tensor iota ones_like zeros_like full_like new_ones new_zeros new_full"
)
# Between a layer's input and its result stand weights: no chain of contractions goes through one.
LAYER = (
    "linear addmm addmv addbmm _scaled_mm _grouped_mm bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d conv_tbc _convolution convolution embedding embedding_bag lstm gru rnn_tanh rnn_relu"
)
RESHAPING = ("unsqueeze_", "squeeze_", "t_", "transpose_", "swapaxes_", "swapdims_")  # change the tensor itself
# Borders between contractions; in front of a region's inputs a kernel can compute them.
VECTOR_NORMS = ("norm", "vector_norm", "linalg_vector_norm")
NORMS = ("normalize", "rms_norm", "linalg_norm", *VECTOR_NORMS)
# What stands between products in networks without attention: of these nothing is said.
ORDINARY = ("layer_norm", "group_norm", "batch_norm", "instance_norm", "sort")
RANDOM = ("gumbel_softmax", "dropout1d", "dropout2d", "dropout3d")  # what no operator of ATen has the name of
KINDS = {
    name: kind
    for kind, names in {
        "contraction": CONTRACTION,
        "attention": ATTENTION,
        "reduction": REDUCTION,
        "view": VIEW,
        "pointwise": POINTWISE,
        "cast": CAST,
        "creation": CREATION,
        "join": JOIN,
        "layer": LAYER,
    }.items()
    for name in names.split()
}
# A mixture is a contraction or layer that only sums over a batch of what comes from another one: survey.py tells.
INTERIOR = ("reduction", "view", "pointwise", "cast", "join", "creation", "mixture")
_TRANSPOSES = ("mT", "T", "mH", "H")
_IN_PLACE_OPERATORS = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor setitem".split()


def name_of(node: fx.Node) -> str:
    """The bare name of the operation: "softmax" for F.softmax, x.softmax and aten._softmax alike ("_softmax")."""
    if node.op == "call_method":
        return node.target
    return _name_of_target(node.target) if node.op == "call_function" else ""


@lru_cache(1024)
def _name_of_target(target) -> str:
    schema = getattr(target, "_schema", None)
    return schema.name.rpartition("::")[2] if schema is not None else getattr(target, "__name__", "")


def is_aten(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload)


def is_higher_order(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def changes_in_place(node: fx.Node) -> bool:
    """The node writes into one of its arguments."""
    if node.op not in ("call_function", "call_method"):
        return False
    if node.kwargs.get("out") is not None:
        return True
    if known := schemas(node):
        return any(schema.is_mutable for schema in known)
    if inplace_argument(node) is not None:
        return True
    name = name_of(node)
    if node.op == "call_function" and name in _IN_PLACE_OPERATORS:
        return getattr(node.target, "__module__", "") in ("operator", "_operator")
    return name.endswith("_") and not name.endswith("__") and name not in ("and_", "or_", "not_")


def schemas(node: fx.Node) -> tuple:
    """Of an operator of torch's or a library's: where the call does not say which overload, of all but those that
    write into an `out` of their own.
    """
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        every = (getattr(node.target, name)._schema for name in node.target.overloads())
        return tuple(schema for schema in every if not any(a.is_out for a in schema.arguments))
    schema = getattr(node.target, "_schema", None)
    return () if schema is None else (schema,)


def inplace_argument(node: fx.Node) -> dict | None:
    """The arguments beside `inplace` of a call that sets it, by name and in order, with the defaults of those that were
    not given; None of any other."""
    known = _parameters(node.target) if node.op == "call_function" else {}
    if "inplace" not in known:
        return None
    given = {**known, **dict(zip(known, node.args, strict=False)), **node.kwargs}
    return {name: value for name, value in given.items() if name != "inplace"} if given["inplace"] else None


@lru_cache(maxsize=512)
def _parameters(function: Callable) -> dict[str, object]:
    """Defaults by name, in order."""
    if getattr(function, "__module__", "") != "torch.nn.functional":
        return {}
    try:
        return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    except ValueError:
        return {}


def draws(node: fx.Node) -> bool:
    """Gives something else each time, by a generator's state or, in an operator of some library, a state of its own:
    two of them stay in their order."""
    known = node.target if is_aten(node) else getattr(torch.ops.aten, name_of(node) or "_", None)
    overloads = [known] if is_aten(node) else [getattr(known, o) for o in known.overloads()] if known else []
    if any(torch.Tag.nondeterministic_seeded in o.tags for o in overloads) or name_of(node) in RANDOM:
        return not ("dropout" in name_of(node) and _given(node, 2, "training", "train") is False)
    named = getattr(getattr(node.target, "_schema", None), "name", getattr(node.target, "_qualified_op_name", "aten::"))
    return named.partition("::")[0] not in ("aten", "prims", "onepass")


def _given(node: fx.Node, place: int, *names: str):
    """An argument by place or by one of its names; None if it is not given."""
    by_name = next((node.kwargs[name] for name in names if name in node.kwargs), None)
    return node.args[place] if len(node.args) > place else by_name


def only_looks(node: fx.Node) -> bool:
    """A view that surely shares its input's memory: what it gives is read later, with what was written meanwhile."""
    index = node.args[1] if name_of(node) == "getitem" else ()
    picks = isinstance(index, list) or (isinstance(index, tuple) and any(isinstance(n, list) for n in index))
    return kind_of(node) == "view" and name_of(node) not in COPIES and not picks


def kind_of(node: fx.Node) -> str:
    """contraction, attention, reduction, view, pointwise, cast, creation, join, layer, or other."""
    if is_higher_order(node):
        return "other"
    name = name_of(node)
    if changes_in_place(node):
        name = name.removeprefix("i") if name in _IN_PLACE_OPERATORS else name.rstrip("_")
    kind = KINDS.get(name, "other")
    if name == "getattr" and node.args[1] not in _TRANSPOSES:
        return "other"
    if name == "getitem" and node.target is operator.getitem and _has_nodes(node.args[1]):
        return "other"  # a gather
    if name in ("max", "min") and _has_nodes([*node.args[1:2], node.kwargs.get("other")]):
        return "pointwise"  # the larger of two tensors
    return kind


def _has_nodes(value) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_has_nodes, value))
    if not isinstance(value, fx.Node):
        return False
    return any(isinstance(value.meta.get(name), torch.Tensor) for name in ("val", "example_value"))
