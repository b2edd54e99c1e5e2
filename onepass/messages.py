"""The sentences of refusals, as data: a code, the kind for programs, the sentence, and what to write instead.

Each is raised as `Refusal(messages.NAME, where, ...)`; what is in braces is given there. A code is never used again for
another sentence. docs/refusals.md is generated from these records. Example: OP101 is autocast inside of a function.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE = "docs/refusals.md"


@dataclass(frozen=True)
class Message:
    """One sentence. `kind` groups sentences for programs; `way_out` says what to write instead."""

    code: str
    kind: str
    sentence: str
    way_out: str

    @property
    def link(self) -> str:
        """Where the page of refusals explains it."""
        return f"{PAGE}#{self.code.lower()}"


OTHER_WAY_OUT = "onepass.explain(function, *inputs) shows what was found; docs/limits.md lists what is refused"
ELSEWHERE = "write it in other operations, or outside of the two products"
WRITTEN_AS_A_VALUE = "write the change as a new value: y = y + x, or torch.where"
WRITTEN_OUT = "write the call out: products, a softmax, a product"
TWICE = "compute what is also used outside from the result, or a second time"
ONE_GRAD_MODE = "compute the region and what reads it in one grad mode"
FLOATS = "compute it in a floating dtype"

# Capturing: what the graph holds --------------------------------------------------------------------------------------

AUTOCAST = Message(
    "OP101",
    "autocast",
    "autocast is on: the recorded dtypes are not those that would run",
    "enter autocast around the compiled call, not inside of it",
)
NO_INPUTS = Message(
    "OP102",
    "no inputs",
    "the region has no tensor inputs",
    "pass the tensors to the function instead of making them in it",
)
SUBCLASS = Message(
    "OP103",
    "subclass",
    "{name} is a {type}, a subclass of Tensor with operations of its own, which are not captured: GraphPass, as a "
    "joint_custom_pre_pass for inference, gets the plain tensors that it is made of",
    "give plain tensors, or use onepass.GraphPass as the reason says",
)
NO_TENSOR_RESULT = Message(
    "OP104", "outputs", "a result of the region is not a tensor", "return tensors only, and compute numbers outside"
)
COMPLEX = Message("OP105", "complex", "complex numbers are not supported", "compute with real and imaginary parts")
EMPTY = Message("OP106", "empty", "a tensor without elements", "call it only where every size is at least one")
LAYOUT = Message(
    "OP107",
    "layout",
    "only plain strided tensors are supported",
    "make it dense and not quantized: x.to_dense(), x.dequantize()",
)
NO_TENSORS = Message("OP108", "operation", "{call} does not give tensors", ELSEWHERE)
NOT_ATEN = Message("OP109", "operation", "{call} is not an ATen operation", ELSEWHERE)
IN_PLACE_CALL = Message("OP110", "in-place", "{call} changes a tensor in place", WRITTEN_AS_A_VALUE)
CONSTANT = Message(
    "OP111",
    "constant",
    "a constant tensor is captured by the function; pass it as an input",
    "pass the tensor as an argument, or register it as a buffer of the module",
)
ARGUMENT = Message(
    "OP112", "argument", "an argument of type {type} cannot be stored", "give numbers, tensors, dtypes or devices"
)
NO_METADATA = Message(
    "OP113",
    "no metadata",
    'nothing is known about the value of {name}: its node has no example value (meta["val"])',
    "trace the graph with example inputs, by torch.compile or make_fx(f)(*inputs), or fill in values by "
    "torch.fx.passes.fake_tensor_prop.FakeTensorProp(module).propagate(*inputs)",
)
PACKAGED = Message(
    "OP114",
    "package",
    "a package of AOTInductor may be loaded where no Python is, and onepass's operation is Python",
    'GraphPass(aot="python") fuses it, for processes that import onepass.operator',
)
WRAPPED = Message(
    "OP115",
    "wrapper",
    "with its option cpp_wrapper, Inductor cannot write a call of onepass's operation in C++",
    "leave out cpp_wrapper",
)

# Finding: which nodes belong together ---------------------------------------------------------------------------------

UNKNOWN_BETWEEN = Message(
    "OP201",
    "unknown operation",
    "{call} stands between two contractions, and no kernel is derived for it",
    ELSEWHERE,
)
NO_PRODUCT_BEFORE = Message(
    "OP202",
    "no product before",
    "what {call} reduces {origin}",
    "compute the scores by a product of two inputs, in the same graph; if a graph break cut the product off, "
    "onepass.explain names it, and fullgraph=True raises at it",
)
HIGHER_ORDER = Message(
    "OP203",
    "higher-order",
    "the region is inside of what {call} calls",
    "call it outside of that operation, or in a checkpoint",
)
FLEX_ATTENTION = Message(
    "OP204",
    "opaque",
    "{call} is torch's FlexAttention, one operation with score_mod and mask_mod inside, and is left to torch",
    "write it in plain PyTorch: a product, what score_mod does, torch.where with the mask, a softmax, a product; "
    "docs/from_flex.md has ten examples",
)
FAST_PATH = Message(
    "OP205",
    "opaque",
    "{call} is one operation of torch's with attention inside: its modules call it in eval without gradients; "
    "torch.backends.mha.set_fastpath_enabled(False) lets them call smaller ones",
    "call torch.backends.mha.set_fastpath_enabled(False) first",
)
KEPT_WHOLE = Message("OP209", "opaque", "{call} is kept whole: {reason}", WRITTEN_OUT)

CHOICE_BETWEEN = Message(
    "OP210",
    "unknown operation",
    "{call} chooses among scores between two contractions, and no kernel is derived for it",
    "read its positions alone: gather keys and values by them, then write a product of each query with its own keys, "
    "as q.unsqueeze(-2) @ gathered.mT, a softmax and a product with the gathered values",
)

# Moving: what forbids to compute the region in one place --------------------------------------------------------------

USED_OUTSIDE = Message("OP301", "used outside", "the result of {call} is also {user}", TWICE)
USED_AND_WRITTEN = Message(
    "OP302",
    "used outside",
    "{reason}: written it is anyway, and to compute it again would save no more than to read it costs",
    TWICE,
)
CYCLE = Message(
    "OP303",
    "used outside",
    "{call} reads what the region computes and gives what it needs",
    "give it scores of its own: compute what it reads a second time, as torch.sort(q @ k.mT), which may differ by "
    "rounding; where scores are compared with its values, let its positions make the mask: "
    "zeros.scatter(-1, places, True)",
)
AUTOCAST_INSIDE = Message(
    "OP304",
    "autocast",
    "the region is under {scope}: what the graph says of its values is not what runs; autocast around the whole call "
    "is captured",
    AUTOCAST.way_out,
)
TRANSFORM_INSIDE = Message(
    "OP305",
    "transform",
    "the region is under {scope}: what the graph says of its values is not what runs",
    "call the transform around the whole region",
)
REGION_IN_PLACE = Message("OP306", "in-place", "{call} changes a tensor of the region in place", WRITTEN_AS_A_VALUE)
PARTLY_FORWARD_MODE = Message(
    "OP307",
    "transform",
    "the region is partly outside of the forward mode (jvp) that the rest of it is under",
    "call the transform around the whole region",
)
READ_WITHOUT_GRADIENTS = Message(
    "OP308",
    "no_grad",
    "{call} reads the region where no gradients are recorded, and another result is made where they are",
    ONE_GRAD_MODE,
)
READ_BEFORE_AND_BEHIND = Message(
    "OP309",
    "in-place",
    "{call} changes in place what the region reads, and the region also needs a value that is computed after that",
    WRITTEN_AS_A_VALUE,
)
SCORES_WRITTEN = Message(
    "OP310",
    "in-place",
    READ_BEFORE_AND_BEHIND.sentence + "; with torch.where or masked_fill in place of the change it could be fused",
    WRITTEN_AS_A_VALUE,
)
SAVED_INPUT_WRITTEN = Message(
    "OP311",
    "in-place",
    "{call} changes in place what the region's backward pass would read again",
    WRITTEN_AS_A_VALUE,
)
FIRST_USE_WITHOUT_GRADIENTS = Message(
    "OP312",
    "no_grad",
    "the region's first result is used under no_grad, in front of what needs gradients",
    ONE_GRAD_MODE,
)
RANDOM_ORDER = Message(
    "OP313",
    "random",
    "{call} draws before what the region reads is drawn, and would draw after it",
    "draw the other random numbers before the region, or after it",
)
MAY_SHARE_MEMORY = Message(
    "OP314",
    "in-place",
    "{written} is written between what the region reads of {read}, and may be its memory",
    WRITTEN_AS_A_VALUE,
)
FLOAT_AT_RUN_TIME = Message(
    "OP316",
    "sizes",
    "a float that each call gives is read at run time only where it multiplies or divides a tensor",
    "compile with dynamic=False, which makes it a number, or give it as a tensor",
)

# Translating: what an operation means ---------------------------------------------------------------------------------

NO_TERMS = Message("OP401", "operation", "{call} is not supported", ELSEWHERE)
NO_FLOATING_RESULT = Message("OP403", "dtype", "the region's result is {dtype}, not floating", FLOATS)
NO_SCORE_KEPT = Message(
    "OP404",
    "mask",
    "at these sizes the mask keeps no score at all",
    "call it with sizes at which a query keeps a key; the result here is not a number",
)
DEVICES = Message("OP405", "device", "inputs on different devices: {devices}", "move all inputs to one device")
RANDOM_DROPOUT = Message(
    "OP406",
    "random",
    "{call}: dropout in training is random",
    "call model.eval(), set p=0, or drop out the weights by F.scaled_dot_product_attention(..., dropout_p=p)",
)
SYMBOLIC_ARGUMENT = Message(
    "OP407",
    "sizes",
    "{call}: is supported where its argument {name!r} is the same number at every call",
    "compile with dynamic=False, which makes the sizes numbers",
)
DTYPE = Message("OP408", "dtype", "{call}: dtype {dtype} is not supported", FLOATS)
FLOATS_ONLY = Message("OP409", "dtype", "{call}: is supported for floating numbers only", FLOATS)
INTEGER_PRODUCT = Message("OP410", "dtype", "{call}: a contraction of integers is not supported", FLOATS)
INTEGERS_ONLY = Message(
    "OP411",
    "operation",
    "{call}: {what} supported for integers only",
    "divide without rounding, or round outside of the two products",
)
BITS = Message(
    "OP412",
    "operation",
    "{call}: of integers is supported for truth values, and with a number whose bits are neighbours",
    "write the condition with torch.where and comparisons, or x % 2**n",
)
BEYOND_DTYPE = Message(
    "OP413",
    "operation",
    "{call}: with a number beyond {dtype} raises",
    "use a number that the dtype holds, such as torch.finfo(x.dtype).min",
)
SCALED_ELU = Message("OP414", "operation", "{call}: scaled elu is not supported", "write it as torch.where(x > 0, ...)")
PADDING = Message(
    "OP415",
    "operation",
    "{call}: is supported with a constant and known widths from zero on",
    "pad with a constant, and cut elements off by slicing",
)
PRODUCT_WITH_A_NUMBER = Message(
    "OP416", "operation", "{call}: of a number is not supported", "multiply by the number: x * c"
)
LONG_INTEGER_PRODUCT = Message(
    "OP441",
    "dtype",
    "{call}: is supported where it adds up at most {most} products, of a number known here",
    "compute it in float32: q.float() @ k.float().mT is as exact, and a kernel multiplies bytes",
)
SCALED_PRODUCT = Message(
    "OP442",
    "operation",
    "{call}: is supported with scales in float32, one for each tensor, or for each row and column, and a result in "
    "half precision or float32",
    "multiply by other scales behind the product",
)
REPEATED_AXES = Message(
    "OP417", "shape", "{call}: of axes that are repeated is not supported", "give both operands the same sizes"
)
WIDE_CONVOLUTION = Message(
    "OP418", "operation", "{call}: over more than one place", "compute the convolution outside of the two products"
)
FRACTIONAL_STEPS = Message(
    "OP419", "operation", "{call}: with fractional steps is not supported", "multiply: torch.arange(n) * step"
)
SHIFT = Message(
    "OP438",
    "operation",
    "{call}: is supported by a Python number of bits that the dtype has, and to the left in less than 64 bits",
    "write x >> 4 as x // 16, and x << 4 as x * 16",
)
DIFFERENCES = Message(
    "OP420", "operation", "{call}: is supported once, of integers, with nothing appended", "write it as x[1:] - x[:-1]"
)
DIFFERENCE_IN_FRONT = Message(
    "OP421", "operation", "{call}: is supported with one number in front", "write it as x[1:] - x[:-1]"
)
RUNNING_SUM = Message(
    "OP422",
    "operation",
    "{call}: is supported of integers along an axis",
    "compute the sum outside of the two products, and pass it in",
)
RUNNING_SUM_OF_DATA = Message(
    "OP423",
    "operation",
    "{call}: is supported of integers that the graph makes itself, and summed where they are alike along the axis",
    "compute it outside of the two products, and pass it in",
)
NORM = Message(
    "OP424",
    "operation",
    "{call}: is supported over given axes, of order 1, 2 and infinity",
    "give dim, and write other orders as (x.abs() ** p).sum(dim) ** (1 / p)",
)
NORM_AXES = Message(
    "OP425",
    "operation",
    "{call}: is supported over one axis of known size",
    "normalize the last axis, or write it as x * torch.rsqrt((x * x).mean(dims, keepdim=True) + eps)",
)
DISTANCE_ORDER = Message(
    "OP426",
    "operation",
    "{call}: is supported of order 1, 2 and infinity",
    "write other orders out, with a sum of powers",
)
EXTREMA = Message("OP427", "operation", "{call}: is supported for floating tensors only", FLOATS)
POSITIONS_OF_EXTREMA = Message(
    "OP428",
    "operation",
    "{call}: positions of extrema of {dtype} are not supported",
    "give it elements of float32 or half precision",
)
SEVERAL_DIMS = Message(
    "OP429",
    "operation",
    "{call}: over several dims is not supported",
    "reduce one dim after the other, or flatten them first",
)
GROUP_SIZE = Message(
    "OP430",
    "shape",
    "{call}: keys and values have different numbers of heads, or numbers that are not known",
    "repeat the heads of keys and values by repeat_interleave, or compile with dynamic=False",
)
RESHAPE = Message(
    "OP431",
    "shape",
    "{call}: cannot tell how {before} becomes {after}",
    "split or join whole axes (unflatten, flatten), or compile with dynamic=False",
)
ROLL = Message(
    "OP432",
    "shape",
    "{call}: a roll of the elements in memory, or twice of one axis, is not supported",
    "give dims, each one once",
)
SPARSE_GRADIENT = Message(
    "OP433",
    "operation",
    "{call}: the gradient of what is gathered is sparse, and a region's are not",
    "leave out sparse_grad=True, or sparse=True of the embedding",
)
FLATTENED_POSITIONS = Message(
    "OP434", "operation", "{call}: positions in a flattened tensor are not supported", "give dim, or flatten first"
)
SIZE_OF_DATA = Message(
    "OP435",
    "data-dependent",
    "{call}: indexing with a mask gives a size that depends on data",
    "keep the size: torch.where(mask, x, 0), or scores masked by -inf",
)
BEYOND_TABLE = Message(
    "OP437",
    "operation",
    "{call}: places from {first:.0f} to {last:.0f} are beyond a table of {size}",
    "clamp the places to the table; eager raises there, too",
)
TARGETS_OF_OTHER_SHAPES = Message(
    "OP439",
    "operation",
    "{call}: is supported for floats, with a target of as many axes",
    "expand the target to the shape of the scores",
)
POSITIONS_WRITTEN = Message(
    "OP440",
    "operation",
    "{call}: is supported with one position for each row, which is that of an extremum",
    "make the mask by comparing, (positions.unsqueeze(-1) == torch.arange(n)).any(-2), or outside of the region",
)
LARGE_FORM = Message(
    "OP443",
    "operation",
    "as one form it has more than {most} operations, which would take minutes to search",
    "compute what is written row by row outside of the region, as by torch.compiler.disable, or write it in place",
)

# Planning and gradients -----------------------------------------------------------------------------------------------

NO_PLAN = Message(
    "OP501",
    "no plan",
    "{reason}",
    "compute it outside of the two products; `python -m onepass explain` shows the form that has no kernel",
)
MEASURED_SLOWER = Message(
    "OP502",
    "measured",
    "an earlier run measured both: these calls, which Inductor compiles now, took {share} of the plan's time",
    'options={"libraries": False} fuses it all the same',
)
NOT_DERIVED = Message(
    "OP601",
    "training",
    "its gradients are needed and not derived: {reason}; Inductor compiles its forward and its backward",
    'options={"inner": "eager"} fuses it, and its backward runs the original calls',
)
INVARIANT_IN_TRAINING = Message(
    "OP602",
    "invariant",
    "an invariant result has no gradients: those of keys are sums over queries",
    "call it under torch.no_grad(), or leave the option invariant out",
)
JOINT_GRAPH = Message(
    "OP603",
    "joint graph",
    "joint_custom_pre_pass got a joint graph of forward and backward, as an input or a parameter wants a gradient",
    "call the model under torch.no_grad() (eval() does not do that), or set pre_grad_custom_pass instead",
)
ONE_PRODUCT_IN_TRAINING = Message(
    "OP604",
    "training",
    "one product of which only reductions are read, and its gradients are needed: a plan would compute the product "
    "again in each of its kernels, so Inductor compiles its forward and its backward; on a GPU, plans are tried where "
    "estimates allow it",
    'options={"prefer": "memory"} fuses it: less is stored, in more time',
)
GRAPH_BREAK = Message(
    "OP701",
    "graph break",
    "{reason}",
    "write it so that Dynamo captures one graph; torch.compile(..., fullgraph=True) raises at each break",
)

# Ranks ----------------------------------------------------------------------------------------------------------------

RANKS_ONE_RESULT = Message(
    "OP801",
    "ranks",
    "context_parallel takes a function with one result, a tensor",
    "return the attention's result alone",
)
RANKS_ONE_SOFTMAX = Message(
    "OP802",
    "ranks",
    "context_parallel takes a function with one softmax over the keys, and this one has {count}",
    "write one attention: a product, what is done to scores, torch.softmax over the keys, a product with the values",
)
RANKS_NO_LAW = Message(
    "OP803",
    "ranks",
    "states of parts of the keys are not proved to merge to the state of all: {reason}",
    "let everything about a key come from arguments that are named in keys, such as its position, and let only the "
    "softmax and the product with the values reduce over keys",
)
RANKS_NOT_BY_ROW = Message(
    "OP804",
    "ranks",
    "a query's result is not proved to depend on its own query alone: {reason}",
    "let everything about a query come from arguments that are named in queries, such as its position",
)

RANKS_RANDOM = Message(
    "OP805",
    "ranks",
    "context_parallel: weights that are dropped out at random would be drawn by each rank for itself",
    "leave dropout out of the attention",
)
RANKS_LAYOUT = Message(
    "OP806",
    "ranks",
    "context_parallel: the weighted values do not have the axes of the scores, with the values' in place of the keys'",
    "multiply as weights @ values, with keys as the scores' last axis, and change the order of axes afterwards",
)
RANKS_NO_HEADS = Message(
    "OP807",
    "ranks",
    "context_parallel: no axis is proved to be one of heads that can be cut: {reason}",
    "take another schedule, such as ring, without pieces=; or let heads be an axis that all queries, keys and values "
    "have and that the number of ranks times that of pieces divides, and keep what mixes scores of heads outside",
)

ALL = {m.code: m for m in tuple(globals().values()) if isinstance(m, Message)}


def way_out(code: str) -> str:
    """What to write instead, and where the page says more."""
    return f"{ALL[code].way_out} ({ALL[code].link})" if code in ALL else OTHER_WAY_OUT
