"""The table of operations, and questions about one node of a graph that it answers.

A row has an operation's names, its kind and its traits; it serves Dynamo's graphs and ATen graphs alike. A name that is
in no row is a border ("other"): regions end there. Example: F.softmax, x.softmax and aten._softmax are one row.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto
from functools import lru_cache

import torch
from torch import fx


class Trait(Flag):
    """What else is known of an operation, besides its kind."""

    NONE = 0
    # Views: where the axes go.
    PERMUTES = auto()  # permute(0, 2, 1): the new order of all axes is given
    MOVES_AXES = auto()  # movedim(1, 2)
    SWAPS_AXES = auto()  # transpose(1, 2)
    TRANSPOSES = auto()  # t, mT: no axes are given
    SWAPS_LAST_AXES = auto()  # mT, of any rank
    KEEPS_ORDER = auto()  # reshape: the elements stay in row-major order
    EXPANDS = auto()  # expand: an axis of one element becomes longer
    REPEATS = auto()  # expand, repeat, repeat_interleave: the same elements again along an axis
    SPLITS_AXES = auto()  # view(2, 3, 4): the new sizes are given as numbers
    PICKS = auto()  # select: one item of an axis
    # Memory.
    COPIES = auto()  # a view by its kind that copies, always or where the layout asks for it
    MAKES_CONTIGUOUS = auto()  # contiguous, reshape: copies to row-major order, where it copies
    MAY_ALIAS = auto()  # dropout in eval: a new tensor by its kind that may be its input
    RESHAPES_IN_PLACE = auto()  # unsqueeze: x.unsqueeze_(0) gives the tensor itself another shape
    # Products.
    PRODUCT = auto()  # of two operands, and nothing is added: einsum
    MATRIX_PRODUCT = auto()  # of the last two axes of each operand: bmm
    OF_PAIRS = auto()  # a number for each row of one operand and each row of the other: cdist
    ANY_RANK = auto()  # a product of operands of any rank: linear
    ADDS = auto()  # adds its first operand to a product: addmm
    CONVOLUTION = auto()
    TAKES_BIAS = auto()  # input, weight and perhaps a bias: linear
    QUANTISED = auto()  # of bytes; scales and a bias may follow, and weights may be buffers: _scaled_mm
    # Reductions and norms.
    SOFTMAX = auto()
    SOFTMAX_STEP = auto()  # a softmax, its logarithm, or a step of one by hand: amax
    PICKS_ELEMENTS = auto()  # one element of each row, at a position: gather, diagonal
    KEEPS_SHAPE = auto()  # the result has the axis that is reduced: softmax
    GIVES_POSITIONS = auto()  # of elements, and no elements: argmax
    MAKES_DISTANCES = auto()  # makes a distance of a pair's difference: norm, mean
    NORM = auto()  # a border between products; in front of a region's inputs a kernel can compute it
    VECTOR_NORM = auto()  # a norm whose order comes before its axes
    # Arithmetic.
    ARITHMETIC = auto()  # of one or two operands, any of which may be a number: mul
    SCALES = auto()  # with a number: a multiple of the tensor
    # Others.
    LIKE_ANOTHER = auto()  # expand_as: of the second tensor no value is read
    GATHERS = auto()  # reads at positions that other tensors give: index
    AT_POSITIONS = auto()  # a choice for each element where each row has the position of an extremum, else a border
    CUMULATIVE = auto()  # of numbers that the graph makes itself: numbers again; of anything else a border
    CHOOSES = auto()  # elements of a row, by their order: topk
    ORDINARY = auto()  # also between products of networks without attention: nothing is reported of it
    RANDOM = auto()  # random, though no operator of ATen has its name
    LIBRARY_CALL = auto()  # a function with attention inside that Dynamo keeps whole, made of smaller operations
    CLOSED_LIBRARY_CALL = auto()  # the same, of one operation
    RUNS_A_GRAPH = auto()  # a checkpoint: runs the graph that it is given, as if its nodes stood there


MOVES_ONLY_AXES = Trait.PERMUTES | Trait.MOVES_AXES | Trait.SWAPS_AXES | Trait.TRANSPOSES  # elements keep their values


@dataclass(frozen=True)
class AtenOperation:
    """A row of the table. names: ATen's own, then other spellings of it, as functions, methods and operators."""

    names: tuple[str, ...]
    kind: str
    traits: Trait = Trait.NONE


def _row(kind: str, names: str, traits: Trait = Trait.NONE) -> AtenOperation:
    """One operation by all of its names."""
    return AtenOperation(tuple(names.split()), kind, traits)


def _rows(kind: str, names: str, traits: Trait = Trait.NONE) -> tuple[AtenOperation, ...]:
    """An operation for each name, all of one kind."""
    return tuple(AtenOperation((name,), kind, traits) for name in names.split())


ATEN: tuple[AtenOperation, ...] = (
    _row("contraction", "matmul __matmul__ linalg_matmul", Trait.PRODUCT | Trait.MATRIX_PRODUCT | Trait.ANY_RANK),
    *_rows("contraction", "mm bmm", Trait.PRODUCT | Trait.MATRIX_PRODUCT),
    *_rows("contraction", "_int_mm _scaled_mm", Trait.MATRIX_PRODUCT | Trait.QUANTISED),
    _row("contraction", "baddbmm", Trait.MATRIX_PRODUCT | Trait.ADDS),
    _row("contraction", "einsum", Trait.PRODUCT | Trait.ANY_RANK),
    *_rows("contraction", "mv inner linalg_vecdot tensordot"),
    _row("contraction", "cdist", Trait.OF_PAIRS),
    _row("attention", "scaled_dot_product_attention"),
    # Reductions. softmin is a softmax of -x.
    _row(
        "reduction",
        "softmax _softmax special_softmax softmin",
        Trait.SOFTMAX | Trait.SOFTMAX_STEP | Trait.KEEPS_SHAPE,
    ),
    _row("reduction", "_safe_softmax", Trait.SOFTMAX | Trait.SOFTMAX_STEP | Trait.KEEPS_SHAPE),
    _row("reduction", "log_softmax _log_softmax special_log_softmax", Trait.SOFTMAX_STEP | Trait.KEEPS_SHAPE),
    _row("reduction", "logsumexp", Trait.SOFTMAX_STEP),
    _row("reduction", "amax", Trait.SOFTMAX_STEP | Trait.MAKES_DISTANCES),
    _row("reduction", "max", Trait.SOFTMAX_STEP),
    _row("reduction", "cross_entropy_loss cross_entropy"),
    _row("reduction", "nll_loss nll_loss_nd nll_loss_forward"),
    *_rows("reduction", "kl_div binary_cross_entropy_with_logits"),
    *_rows("reduction", "amin mean", Trait.MAKES_DISTANCES),
    *_rows("reduction", "min sum prod any all"),
    *_rows("reduction", "argmax argmin", Trait.GIVES_POSITIONS),
    # Views that move axes. getattr is x.mT, x.T, x.mH or x.H.
    _row("view", "permute", Trait.PERMUTES),
    _row("view", "transpose swapaxes swapdims", Trait.SWAPS_AXES | Trait.RESHAPES_IN_PLACE),
    _row("view", "movedim moveaxis", Trait.MOVES_AXES),
    _row("view", "t", Trait.TRANSPOSES | Trait.RESHAPES_IN_PLACE),
    _row("view", "numpy_T getattr", Trait.TRANSPOSES),
    *_rows("view", "mT mH adjoint", Trait.TRANSPOSES | Trait.SWAPS_LAST_AXES),
    # Views that keep the order of the elements.
    *_rows("view", "view _unsafe_view unflatten", Trait.KEEPS_ORDER | Trait.SPLITS_AXES),
    _row("view", "reshape", Trait.KEEPS_ORDER | Trait.SPLITS_AXES | Trait.COPIES | Trait.MAKES_CONTIGUOUS),
    _row("view", "flatten", Trait.KEEPS_ORDER | Trait.COPIES | Trait.MAKES_CONTIGUOUS),
    _row("view", "view_as", Trait.KEEPS_ORDER | Trait.LIKE_ANOTHER),
    _row("view", "reshape_as", Trait.KEEPS_ORDER | Trait.COPIES | Trait.LIKE_ANOTHER),
    *_rows("view", "unsqueeze squeeze", Trait.KEEPS_ORDER | Trait.RESHAPES_IN_PLACE),
    *_rows("view", "_reshape_alias detach alias positive", Trait.KEEPS_ORDER),
    _row("view", "contiguous", Trait.KEEPS_ORDER | Trait.COPIES | Trait.MAKES_CONTIGUOUS | Trait.MAY_ALIAS),
    _row("view", "clone", Trait.KEEPS_ORDER | Trait.COPIES | Trait.MAY_ALIAS),
    # Other views.
    *_rows("view", "expand broadcast_to", Trait.EXPANDS | Trait.REPEATS),
    _row("view", "expand_as", Trait.EXPANDS | Trait.REPEATS | Trait.LIKE_ANOTHER),
    _row("view", "repeat", Trait.REPEATS | Trait.COPIES),
    *_rows("view", "tile repeat_interleave", Trait.REPEATS | Trait.COPIES),
    *_rows("view", "flip roll", Trait.COPIES),
    _row("view", "getitem", Trait.PICKS | Trait.GATHERS),
    _row("view", "select", Trait.PICKS),
    _row("view", "diagonal linalg_diagonal", Trait.PICKS_ELEMENTS),
    _row("view", "diag", Trait.PICKS_ELEMENTS | Trait.COPIES),
    *_rows("view", "slice narrow split split_with_sizes chunk unbind unfold"),
    # Pointwise. `__eq__` and its kin are what some releases of Dynamo make of a comparison of two tensors.
    _row("pointwise", "mul", Trait.ARITHMETIC | Trait.SCALES),
    _row("pointwise", "div truediv", Trait.ARITHMETIC | Trait.SCALES),
    _row("pointwise", "neg", Trait.SCALES),
    *_rows("pointwise", "add sub subtract multiply divide true_divide", Trait.ARITHMETIC),
    *_rows("pointwise", "rsub reciprocal square pow maximum minimum abs absolute floor logaddexp"),
    *_rows("pointwise", "exp exp2 log log2 log1p sqrt rsqrt tanh sigmoid erf sin cos"),
    *_rows("pointwise", "relu silu gelu elu leaky_relu softplus log_sigmoid sign"),
    _row("pointwise", "remainder mod"),
    _row("pointwise", "floor_divide floordiv"),
    *(_row("pointwise", f"{name} __{name}__") for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *_rows("pointwise", "less less_equal greater greater_equal not_equal isnan isfinite isinf"),
    _row("pointwise", "bitwise_not invert"),
    _row("pointwise", "bitwise_and __and__ and_"),
    _row("pointwise", "bitwise_or __or__ or_"),
    _row("pointwise", "bitwise_right_shift __rshift__ rshift"),
    _row("pointwise", "bitwise_left_shift __lshift__ lshift"),
    *_rows("pointwise", "logical_not logical_and logical_or logical_xor"),
    *_rows("pointwise", "where masked_fill clamp clip clamp_min clamp_max nan_to_num tril triu"),
    _row("pointwise", "dropout", Trait.MAY_ALIAS),
    *_rows("pointwise", "one_hot scatter", Trait.AT_POSITIONS),
    _row("cast", "to _to_copy type float half bfloat16 double long int bool cpu cuda"),
    _row("cast", "type_as", Trait.LIKE_ANOTHER),
    _row("cast", "convert_element_type"),
    _row("join", "cat concat concatenate"),
    _row("join", "pad constant_pad_nd"),
    # torch.tensor(3.0) is traced as full.
    _row("creation", "full tensor"),
    *_rows("creation", "ones zeros arange iota eye scalar_tensor"),
    _row("creation", "uniform_numbers"),  # onepass's own, of a seed
    *_rows("creation", "ones_like zeros_like full_like new_ones new_zeros new_full"),
    # A layer multiplies its input by weights: no chain of contractions goes through one.
    _row("layer", "linear", Trait.ANY_RANK | Trait.TAKES_BIAS),
    _row("layer", "addmm", Trait.MATRIX_PRODUCT | Trait.ADDS),
    *_rows("layer", "conv1d conv2d conv3d convolution", Trait.CONVOLUTION | Trait.TAKES_BIAS),
    *_rows("layer", "_convolution conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc"),
    *_rows("layer", "addmv addbmm _grouped_mm bilinear embedding embedding_bag lstm gru rnn_tanh rnn_relu"),
    # Borders of which something is known. Some have terms, for where a region reads what they make.
    *_rows("other", "normalize rms_norm", Trait.NORM | Trait.KEEPS_SHAPE),
    *_rows("other", "norm vector_norm linalg_vector_norm", Trait.NORM | Trait.VECTOR_NORM | Trait.MAKES_DISTANCES),
    _row("other", "linalg_norm", Trait.NORM),
    *_rows("other", "layer_norm group_norm batch_norm instance_norm", Trait.ORDINARY),
    _row("other", "sort", Trait.ORDINARY | Trait.CHOOSES),
    *_rows("other", "topk argsort kthvalue msort", Trait.CHOOSES),
    *_rows("other", "diff cumsum", Trait.CUMULATIVE),
    *_rows("other", "gumbel_softmax dropout1d dropout2d dropout3d", Trait.RANDOM),
    _row("other", "index", Trait.GATHERS),
    *_rows("other", "gather take_along_dim", Trait.PICKS_ELEMENTS),
    *_rows("other", "index_select stack dot _cdist_forward _euclidean_dist"),
    *_rows("other", "lift_fresh lift_fresh_copy resolve_conj resolve_neg matrix_H"),
    _row("other", "multi_head_attention_forward", Trait.LIBRARY_CALL),
    *_rows("other", "_transformer_encoder_layer_fwd _native_multi_head_attention", Trait.CLOSED_LIBRARY_CALL),
    _row("other", "flex_attention", Trait.CLOSED_LIBRARY_CALL),
    _row("other", "tag_activation_checkpoint", Trait.RUNS_A_GRAPH),
)
OPERATIONS: dict[str, AtenOperation] = {name: row for row in ATEN for name in row.names}
UNKNOWN = AtenOperation((), "other")
# A mixture is a contraction or layer that only sums over a batch of what another one made; survey.py finds it.
INTERIOR = ("reduction", "view", "pointwise", "cast", "join", "creation", "mixture")
BORDERS = ("layer", "other")
TRANSPOSED_ATTRIBUTES = ("mT", "T", "mH", "H")
PYTHON_IN_PLACE = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor setitem".split()  # of the module operator


def operation_named(name: str) -> AtenOperation:
    """The row of any spelling; of a name that is in no row, a border."""
    return OPERATIONS.get(name, UNKNOWN)


def has_trait(node: fx.Node, traits: Trait) -> bool:
    """Whether what the node calls has any of the traits: has_trait(node, Trait.EXPANDS | Trait.REPEATS)."""
    return bool(operation_named(name_of(node)).traits & traits)


def is_call_of(node: fx.Node, name: str) -> bool:
    """Whether the node calls an operation, by any of its spellings: is_call_of(node, "cat") also of torch.concat."""
    return name_of(node) in operation_named(name).names


def is_extremum(node: fx.Node) -> bool:
    """Whether the node reduces by its largest or least element; torch.maximum of two tensors does not."""
    return name_of(node) in ("amax", "amin", "max", "min") and kind_of(node) == "reduction"


def gives_positions(node: fx.Node) -> bool:
    """Whether the node's elements say where others are: argmax(x, -1), and the second item of max(x, -1)."""
    if name_of(node) == "getitem" and node.args[1] == 1 and isinstance(node.args[0], fx.Node):
        return name_of(node.args[0]) in ("max", "min") and kind_of(node.args[0]) == "reduction"
    return has_trait(node, Trait.GIVES_POSITIONS)


def reshapes_in_place(node: fx.Node) -> bool:
    """Whether the node gives a tensor itself another shape, as x.unsqueeze_(0) does."""
    name = name_of(node)
    return name.endswith("_") and Trait.RESHAPES_IN_PLACE in operation_named(name[:-1]).traits


def name_of(node: fx.Node) -> str:
    """The bare name of what a node calls: "softmax" for F.softmax and x.softmax, "_softmax" for aten._softmax."""
    if node.op == "call_method":
        return node.target
    return _name_of_target(node.target) if node.op == "call_function" else ""


@lru_cache(1024)
def _name_of_target(target) -> str:
    schema = getattr(target, "_schema", None)
    return schema.name.rpartition("::")[2] if schema is not None else getattr(target, "__name__", "")


def is_aten(node: fx.Node) -> bool:
    """Whether the node calls an overload of an operator, as graphs of ATen do."""
    return isinstance(node.target, torch._ops.OpOverload)


def is_higher_order(node: fx.Node) -> bool:
    """Whether the node calls an operation that calls other graphs, such as a checkpoint."""
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def changes_in_place(node: fx.Node) -> bool:
    """Whether the node writes into one of its arguments."""
    if node.op not in ("call_function", "call_method"):
        return False
    if node.kwargs.get("out") is not None:
        return True
    if known := schemas(node):
        return any(schema.is_mutable for schema in known)
    if inplace_argument(node) is not None:
        return True
    name = name_of(node)
    if node.op == "call_function" and name in PYTHON_IN_PLACE:
        return getattr(node.target, "__module__", "") in ("operator", "_operator")
    return name.endswith("_") and not name.endswith("__") and name not in ("and_", "or_", "not_")


def schemas(node: fx.Node) -> tuple:
    """The schemas of an operator; empty for other functions.

    If the call names no overload, those of all overloads but the ones with an `out` argument.
    """
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        every = (getattr(node.target, name)._schema for name in node.target.overloads())
        return tuple(schema for schema in every if not any(a.is_out for a in schema.arguments))
    schema = getattr(node.target, "_schema", None)
    return () if schema is None else (schema,)


def inplace_argument(node: fx.Node) -> dict | None:
    """Of a call with inplace=True, the other arguments by name and in order, with defaults; None of any other call."""
    known = _parameters(node.target) if node.op == "call_function" else {}
    if "inplace" not in known:
        return None
    given = {**known, **dict(zip(known, node.args, strict=False)), **node.kwargs}
    return {name: value for name, value in given.items() if name != "inplace"} if given["inplace"] else None


@lru_cache(maxsize=512)
def _parameters(function: Callable) -> dict[str, object]:
    """The defaults of the parameters of a function of torch.nn.functional, in order; empty for other functions."""
    if getattr(function, "__module__", "") != "torch.nn.functional":
        return {}
    try:
        return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    except ValueError:
        return {}


def is_random(node: fx.Node) -> bool:
    """Whether a call may give another result each time; such calls keep their order.

    An operator of ATen is tagged so. Of a library's operator nothing is known: it may have a state of its own.
    """
    known = node.target if is_aten(node) else getattr(torch.ops.aten, name_of(node) or "_", None)
    # `__eq__`, which some releases of Dynamo make of a comparison, is a method of the namespace, too.
    packed = isinstance(known, torch._ops.OpOverloadPacket)
    overloads = [known] if is_aten(node) else [getattr(known, o) for o in known.overloads()] if packed else []
    if any(torch.Tag.nondeterministic_seeded in o.tags for o in overloads) or has_trait(node, Trait.RANDOM):
        return not ("dropout" in name_of(node) and _given(node, 2, "training", "train") is False)
    named = getattr(getattr(node.target, "_schema", None), "name", getattr(node.target, "_qualified_op_name", "aten::"))
    return named.partition("::")[0] not in ("aten", "prims", "onepass")


def _given(node: fx.Node, position: int, *names: str):
    """An argument by position or by one of its names; None if it is not given."""
    by_name = next((node.kwargs[name] for name in names if name in node.kwargs), None)
    return node.args[position] if len(node.args) > position else by_name


def starts_exchange(node: fx.Node) -> bool:
    """Whether the node starts an exchange between ranks, whose result is there when it was waited for."""
    namespace = getattr(node.target, "namespace", getattr(node.target, "_qualified_op_name", "").partition("::")[0])
    functional = namespace in ("_c10d_functional", "_c10d_functional_autograd")
    return functional and not waits_for_exchange(node) and not changes_in_place(node)


def waits_for_exchange(node: fx.Node) -> bool:
    """Whether the node waits for the result of an exchange."""
    return node.op == "call_function" and name_of(node) == "wait_tensor"


def shares_memory(node: fx.Node) -> bool:
    """Whether the node is a view that always shares its input's memory, so that it sees later writes into it."""
    index = node.args[1] if name_of(node) == "getitem" else ()
    picks = isinstance(index, list) or (isinstance(index, tuple) and any(isinstance(n, list) for n in index))
    return kind_of(node) == "view" and not has_trait(node, Trait.COPIES) and not picks


def kind_of(node: fx.Node) -> str:
    """contraction, attention, reduction, view, pointwise, cast, creation, join, layer, or other (a border).

    The kind of the operation's row, unless the arguments make it another one: x[indices] is a gather, not a view.
    """
    if is_higher_order(node):
        return "other"
    name = name_of(node)
    if changes_in_place(node):
        name = name.removeprefix("i") if name in PYTHON_IN_PLACE else name.rstrip("_")
    kind = operation_named(name).kind
    if _has_only_the_name(node, name):
        return "other"
    if name in ("max", "min") and _has_nodes([*node.args[1:2], node.kwargs.get("other")]):
        return "pointwise"  # the larger of two tensors
    return "other" if Trait.AT_POSITIONS in operation_named(name).traits and not _is_at_extrema(node) else kind


def _has_only_the_name(node: fx.Node, name: str) -> bool:
    """Whether a call is not what the row of its name says."""
    if name == "getattr":
        return node.args[1] not in TRANSPOSED_ATTRIBUTES
    if name == "getitem":
        return node.target is operator.getitem and _has_nodes(node.args[1])
    if name == "diag":
        return len(_texts_of_sizes(node)) != 1  # the matrix that has a vector as its diagonal
    return node.target is math.prod  # of sizes, no reduction of a tensor


def _is_at_extrema(node: fx.Node) -> bool:
    """Whether a call gives each row one position, that of an extremum: it is within bounds, and no other is written.

    Examples: one_hot(p.argmax(-1), n), and zeros.scatter(-1, p.max(-1, keepdim=True).indices, 1.0).
    """
    if "one_hot" in name_of(node):
        positions, count = _given(node, 0, "self", "tensor", "input"), _given(node, 1, "num_classes")
        return _is_of_extrema(positions) and count is not None and not (isinstance(count, int) and count < 1)
    target, dim, positions = (_given(node, *one) for one in ((0, "self", "input"), (1, "dim"), (2, "index")))
    sizes = [_texts_of_sizes(x) for x in (target, positions)]
    if "reduce" in node.kwargs or not isinstance(dim, int) or not all(sizes) or len({*map(len, sizes)}) > 1:
        return False
    sizes[0][dim] = "1"
    return sizes[0] == sizes[1] and _is_of_extrema(positions)


def _texts_of_sizes(node: object) -> list[str]:
    """A tensor's sizes as text, so that to compare symbols adds no guard; empty for anything else."""
    value = node.meta.get("val", node.meta.get("example_value")) if isinstance(node, fx.Node) else None
    return [str(n) for n in value.shape] if isinstance(value, torch.Tensor) else []


def _is_of_extrema(node: object) -> bool:
    """Whether a node gives positions of extrema, or is a view of them."""
    while isinstance(node, fx.Node) and not gives_positions(node):
        keeps = kind_of(node) == "view" and node.all_input_nodes
        node = node.all_input_nodes[0] if keeps else None
    return isinstance(node, fx.Node)


def _has_nodes(value) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_has_nodes, value))
    if not isinstance(value, fx.Node):
        return False
    return any(isinstance(value.meta.get(name), torch.Tensor) for name in ("val", "example_value"))
