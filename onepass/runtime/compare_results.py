"""Compares a kernel's first results with the tiled executor's, up to rounding.

The tiled executor computes in float32, and a kernel multiplies half-precision numbers. The constants below bound what
that may change. Example: a kernel that leaves out one of 300 keys exceeds them. Of positions of extrema, elements
are compared: of scores 2.0 and 1.9999999 either position is right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch

from ..egraph.terms.sizes import Size, value_of
from ..egraph.terms.traversal import subterms
from ..graph.op_kinds import Trait, operation_named
from ..graph.program import GETITEM, Atom, Input, Meta, Program, ProgramNode, operation
from ..lowering.plan.records import Plan
from .region_call import RegionCall, Tensors

Pair = tuple[torch.Tensor, torch.Tensor]
Compute = Callable[[Program, Tensors, RegionCall], Sequence[torch.Tensor]]

# A kernel rounds weights and other computed operands of a product to the half that the other side has, each by at most
# u = 2^-8 (bfloat16) or 2^-11 (float16), and the result once more: it moves by at most 3u · Σ w |v| / Σ w. These
# are independent or common to a row, so over a result they are well below 3u of its size; a key of 300 that is left out
# is 1 / √300 of it even where all weights are alike. Hence 8u for the root of the mean square, and 16u of the largest
# element for the largest difference, for the cancellation in one. In float32, u stands for the order of sums and exp2.
MEAN_FACTOR, LARGEST_FACTOR = 8, 16
ROUNDING = {torch.float64: 1e-10, torch.float32: 2.0**-15, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
STEPS_BELOW_NORMAL = 0.5  # numbers below the smallest normal one are that far apart: in float16 6e-8
MIN_SIZE = 1e-5  # smaller results count as this
# Of what moved inputs change, the part that may be a kernel's rounding. In half precision an input's unit is as large
# as that of all that is rounded between, and there are more inputs: moving them changes more than a kernel's rounding.
PART_OF_MOVED = {torch.float16: 1 / 16, torch.bfloat16: 1 / 16}


@dataclass(frozen=True)
class RoundingFacts:
    """What else is known of the rounding of a result.

    computed: the dtypes in which values between are computed. moved: what is expected where every input is moved by
    what rounding may move it. Example: the gradient of a number added to all scores of a row is 0, and all that is
    left of it is noise, which moves as much as it is large.
    """

    computed: Collection[torch.dtype] = ()
    moved: torch.Tensor | None = None


def mismatch(
    result: torch.Tensor,
    expected: torch.Tensor,
    inputs: Sequence[torch.Tensor] = (),
    rounding: RoundingFacts = RoundingFacts(),
) -> str | None:
    """Why two results are not the same up to rounding in the narrowest dtype of all; None if they are."""
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return f"{result.dtype} {tuple(result.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
    if not expected.is_floating_point():
        return None if torch.equal(result, expected) else "different values"
    if not _same_special_values(result, expected):
        return "NaN or infinity at different places"
    return _differs(result, expected, inputs, rounding)


def computed_dtypes(plan: Plan) -> frozenset[torch.dtype]:
    """The floating dtypes to which a plan casts values between."""
    terms = {node for kernel in plan.kernels for store in kernel.stores for node in subterms(store.term)}
    return frozenset(getattr(torch, node.dtype) for node in terms if node.op == "cast") & frozenset(ROUNDING)


def moved(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors with every floating element moved to a number beside it. Draws no number of the user's."""
    return [_moved(x, number) if x.dtype in ROUNDING else x for number, x in enumerate(tensors)]


def _moved(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    signs = torch.Generator(tensor.device).manual_seed(seed)
    up = torch.rand(tensor.shape, generator=signs, device=tensor.device) < 0.5
    unit = torch.finfo(tensor.dtype).eps
    found = torch.where(up, tensor * (1 + unit), tensor * (1 - unit))
    return torch.where(found.isfinite(), found, tensor)  # a mask's least number stays one


def _same_special_values(result: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether NaN and each infinity are at the same elements in both."""
    kind = lambda x: torch.stack([x.isnan(), x == torch.inf, x == -torch.inf])
    return torch.equal(kind(result), kind(expected))


def _differs(
    result: torch.Tensor,
    expected: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    rounding: RoundingFacts = RoundingFacts(),
) -> str | None:
    """By how much the results differ where both are finite; None if that is rounding."""
    kinds = {*(t.dtype for t in (expected, *inputs)), *rounding.computed}
    unit = max(_rounding(dtype) for dtype in kinds if dtype in ROUNDING)
    both = result.isfinite() & expected.isfinite()
    wanted, error = expected[both].double(), (result[both].double() - expected[both].double()).abs()
    if not error.numel():
        return None
    smallest = torch.finfo(expected.dtype).smallest_normal * torch.finfo(expected.dtype).eps
    noise = torch.zeros_like(wanted) if rounding.moved is None else rounding.moved[both].double() - wanted
    noise = noise[noise.isfinite()] * min(PART_OF_MOVED.get(dtype, 1.0) for dtype in kinds)
    sizes: tuple[tuple[int, Callable], ...] = (
        (MEAN_FACTOR, lambda x: x.square().mean().sqrt()), (LARGEST_FACTOR, lambda x: x.abs().max())
    )  # fmt: skip
    for factor, size in sizes:
        still = size(noise).item() if noise.numel() else 0.0
        relative = unit * max(size(wanted).item(), MIN_SIZE)
        found, allowed = size(error).item(), factor * max(relative, still, STEPS_BELOW_NORMAL * smallest)
        if found > allowed:
            return f"{'on average' if factor == MEAN_FACTOR else 'somewhere'} by {found:.3g}, more than {allowed:.3g}"
    return None


def _rounding(dtype: torch.dtype) -> float:
    fast = dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"  # TensorFloat-32 or halves
    return ROUNDING[torch.float16 if fast else dtype]


def undecided(result: torch.Tensor, expected: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether the two only have NaN and infinities at other places, and an input or what is expected holds some.

    At masked places NaN and infinities count as absent; which tiles are read decides which rows they reach. A -∞ alone
    is a mask. Where sums go beyond the dtype's end, their order decides which are infinite and which are NaN. Example:
    weights of -3e38 and values of 2 and -2 give -∞ + ∞.
    """
    alike = result.shape == expected.shape and result.dtype == expected.dtype and expected.is_floating_point()
    unusual = any(bool((t.isnan() | (t == torch.inf)).any()) for t in inputs if t.is_floating_point())
    beyond = not bool(expected.isfinite().all())
    return alike and (unusual or beyond) and _differs(result, expected, inputs) is None


# Positions of extrema: of two elements that are almost equal, rounding picks one. Elements are compared in their place.


@dataclass(frozen=True)
class Elements:
    """A program of the elements at given positions, for each result of another one that is a position.

    program: its inputs are those of the other one and then the positions. numbers: of the results; lengths: of their
    axes.
    """

    program: Program
    numbers: tuple[int, ...]
    lengths: tuple[Size, ...]


def compared_by_elements(
    results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], program: Program, given: tuple, compute: Compute
) -> list[Pair]:
    """Pairs of results to compare: where positions differ, of the elements there.

    given: the tensors and the kind of the call. compute: runs a program on them.
    """
    pairs, (tensors, call) = list(zip(results, expected, strict=True)), given
    made = elements_at(program)
    if all(torch.equal(*pairs[n]) for n in made.numbers):
        return pairs
    inside = {n: _is_inside(results[n], value_of(size, call.sizes)) for n, size in zip(made.numbers, made.lengths)}
    sides = [
        compute(made.program, [*tensors, *(one[n] if inside[n] else expected[n] for n in made.numbers)], call)
        for one in (results, expected)
    ]
    for n, pair in zip(made.numbers, zip(*sides, strict=True), strict=True):
        pairs[n] = pair if inside[n] and results[n].shape == expected[n].shape else pairs[n]
    return pairs


def _is_inside(positions: torch.Tensor, length: float) -> bool:
    return bool(((positions >= 0) & (positions < length)).all())


def elements_at(program: Program) -> Elements:
    """The elements at the positions that a program finds."""
    made = {node.name: node for node in program.nodes}
    metas = {name: node.meta for name, node in made.items()} | {x.name: x.meta for x in program.inputs}
    found = {n: (name, _extremum(made.get(name), made)) for n, name in enumerate(program.outputs)}
    inputs, nodes, outputs, lengths = [*program.inputs], [*program.nodes], [], []
    numbers = tuple(number for number, (_, call) in found.items() if call is not None)
    for number in numbers:
        name, call = found[number]
        arguments = _arguments(call)
        source, positions = arguments["self"], f"positions_of_result_{number}"
        axis = int(arguments["dim"]) % len(metas[source.text].shape)
        lengths.append(metas[source.text].shape[axis])
        inputs.append(Input(positions, metas[name], ()))
        nodes += _gather(source, positions, axis, metas[name], metas[source.text].dtype, bool(arguments["keepdim"]))
        outputs.append(nodes[-1].name)
    return Elements(Program(tuple(inputs), tuple(nodes), tuple(outputs)), numbers, tuple(lengths))


def _gather(source: Atom, positions: str, axis: int, meta: Meta, dtype: str, keeps: bool) -> list[ProgramNode]:
    """The calls that read one element for each position. keeps: positions have the axis, with length 1."""
    name = lambda part: f"{positions}, {part}"
    along = meta if keeps else replace(meta, shape=(*meta.shape[:axis], 1, *meta.shape[axis:]))
    read = replace(along, dtype=dtype)
    if keeps:
        return [ProgramNode(name("read"), "aten.gather.default", (source, axis, Atom("node", positions)), (), (read,))]
    calls = (
        ("along", "aten.unsqueeze.default", (Atom("node", positions), axis), along),
        ("read", "aten.gather.default", (source, axis, Atom("node", name("along"))), read),
        ("alone", "aten.squeeze.dim", (Atom("node", name("read")), axis), replace(meta, dtype=dtype)),
    )
    return [ProgramNode(name(part), target, given, (), (made,)) for part, target, given, made in calls]


def _extremum(node: ProgramNode | None, made: dict[str, ProgramNode]) -> ProgramNode | None:
    """The call of which a value is the position; None of any other value."""
    if node is None:
        return None
    if node.target == GETITEM:
        return made.get(node.args[0].text) if node.args[1] == 1 and node.meta.dtype == "int64" else None
    name = node.target.split(".")[1]
    return node if Trait.GIVES_POSITIONS in operation_named(name).traits else None


def _arguments(node: ProgramNode) -> dict:
    """The arguments by name, with defaults."""
    schema = operation(node.target)._schema.arguments
    defaults = {a.name: a.default_value if a.has_default_value() else None for a in schema}
    return defaults | {a.name: x for a, x in zip(schema, node.args, strict=False)} | dict(node.kwargs)
