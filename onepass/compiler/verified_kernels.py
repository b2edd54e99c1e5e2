"""Holds the texts of a plan's kernels against the plan's terms, over exact numbers, before they run.

Integers and bools, which masks are made of, are those of the call. Other inputs are random numbers, so that what is
equal is not equal by chance. Where a kernel is large, some of its programs run. Example:
`complaints(TRITON.texts(plan, tensors, sizes))` is empty if each text computes its terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod, sqrt
from operator import add, mul
from typing import Any

import numpy as np
import torch

from ..egraph.terms.ops import const, sum_over, where
from ..egraph.terms.sizes import resolve
from ..egraph.terms.term import Term
from ..egraph.terms.traversal import all_dims, subterms
from ..errors import OnepassError
from ..lowering.executors import PlanExecutor, ScheduleStore, Sizes, Strides, TritonExecutor
from ..lowering.plan.kernel_texts import KernelTexts
from ..lowering.plan.records import Kernel, NotPlannable, Plan, Store

MOST_PRODUCTS = 2**27  # points of all dims of a kernel at which all its programs run
MOST_SPLIT_PRODUCTS = 2**31  # of a kernel of several launches, all of whose programs run
MOST_JOINED_PRODUCTS = 2**28  # of a joined kernel and the one that finishes its sums, all of whose programs run
FEWEST_PROGRAMS = 3  # the first one, the last one and one between
SMALLEST_MASK = 1e4  # a number beyond it is a mask's: it stays
LARGE_SCORES = 100.0  # the size of scores that are large: without its largest score a row overflows
LARGEST_FACTOR = 64.0  # of random inputs
SIZES_OF_INTEGERS = {"int8": 74.0}  # the root of the mean square of all its numbers; other integers are positions
SEED = 20


class WrongKernel(OnepassError):
    """The text of a kernel does not compute its terms; the message says where."""


def require_equal(
    executor: PlanExecutor,
    plan: Plan,
    inputs: Mapping[str, torch.Tensor],
    sizes: Sizes,
    strides: Strides | None,
    store: ScheduleStore | None = None,
    deterministic: bool = False,
) -> str:
    """What is found of the texts that an executor would run, for the report.

    Raises WrongKernel for a text that is not equal to its terms, NotPlannable where that cannot be decided.
    """
    if not isinstance(executor, TritonExecutor):
        return f"executor {executor.name} has no texts to hold against terms"
    texts = executor.texts(plan, inputs, sizes, strides, store, deterministic)
    most = lambda one: MOST_SPLIT_PRODUCTS if one.finish is None else MOST_JOINED_PRODUCTS
    if any(len(one.calls) > 1 and _points(one) > most(one) for one in texts):
        raise NotPlannable("it is too large for its text to be held against its terms, and verify is 'kernel'")
    if wrong := complaints(texts):
        raise WrongKernel(f"a text does not compute its terms: {wrong[0]}")
    return f"{', '.join(one.kernel.name for one in texts)}: over exact numbers the text computes its terms"


def complaints(texts: Sequence[KernelTexts]) -> list[str]:
    """What texts do otherwise than their terms say, each with its kernel's name; none if they are equal."""
    from ..proofs.texts.check import differences

    held = (pair for factor in factors(texts) for pair in checks(texts, factor=factor))
    return [f"{one.kernel.name}: {said}" for one, checked in held for said in differences(checked)]


def factors(texts: Sequence[KernelTexts]) -> tuple[float, ...]:
    """The factors of random inputs: 1, and where large scores overflow nowhere, those that make scores large.

    Large ones are about LARGE_SCORES, whatever is multiplied and summed in them: a score that is much larger counts as
    masked. Where scores are larger than that with the factor 1, the first factor is smaller, too.
    """
    if not keeps_its_range(texts):
        return (1.0,)
    factor = LARGEST_FACTOR
    while size_of_scores(texts, factor) > LARGE_SCORES and factor > 1 / LARGEST_FACTOR:
        factor *= 0.95
    return (min(1.0, factor), factor, -factor)


def size_of_scores(texts: Sequence[KernelTexts], factor: float) -> float:
    """The typical size of the largest scores in the kernels' terms, for random inputs with this factor."""
    stored: dict[str, float] = {}
    found = 0.0
    for one in texts:
        sizes = TypicalSizes(one.sizes, factor, stored)
        for store in one.kernel.stores:
            stored[store.output.name] = sizes.of(store.term)
            found = max([found, *(sizes.of(n.args[0]) for n in subterms(store.term) if n.op == "scaled")])
    return found


class TypicalSizes:
    """The size that a term's values have, roughly: the root of the mean of their squares, for random inputs.

    Terms of a sum are taken for numbers of both signs; of a sum of squares, the size is how far its values are apart.
    factor: of inputs. stored: sizes of tensors that kernels store. Example: a sum of 64 products has the size 8.
    """

    def __init__(self, sizes: Mapping[str, int], factor: float, stored: Mapping[str, float]):
        self.sizes, self.factor, self.stored = sizes, abs(factor), stored
        self.known: dict[Term, float] = {}

    def of(self, term: Term) -> float:
        """The size of a term's values; of a state, that of its mantissa."""
        for node in subterms(term):
            if node not in self.known:
                self.known[node] = self._size(node, [self.known[a] for a in node.args])
        return self.known[term]

    def _size(self, node: Term, below: Sequence[float]) -> float:
        match node.op:
            case "const":
                value = abs(node.attrs[0])
                return value if value < SMALLEST_MASK else 0.0
            case "iota":
                return float(resolve(node.attrs[0].size, self.sizes))
            case "size":
                return float(resolve(node.attrs[0], self.sizes))
            case "load":
                size = self.factor if "float" in node.dtype else SIZES_OF_INTEGERS.get(node.dtype, 1.0)
                return self.stored.get(node.attrs[0].name, size)
            case "reduce":
                return below[0] * (sqrt(resolve(node.attrs[1].size, self.sizes)) if node.attrs[0] == "sum" else 1.0)
            case "scale":
                return max(self.known[n.args[0]] for n in subterms(node) if n.op == "scaled")
        return SIZES[node.op](*below) if node.op in SIZES else max(below, default=1.0)


SIZES: dict[str, Callable[..., float]] = {  # of results, by sizes of operands; of other operations the largest one's
    "add": add,
    "sub": add,
    "mul": mul,
    "div": lambda a, b: a / (b or 1.0),
    "sqrt": sqrt,
    "rsqrt": lambda a: 1 / sqrt(a or 1.0),
    "where": lambda condition, a, b: max(a, b),
    "scaled": lambda score, weight: weight,
    **dict.fromkeys(("tanh", "sigmoid", "sin", "cos", "erf", "log", "log1p"), lambda a: 1.0),
}


def keeps_its_range(texts: Sequence[KernelTexts]) -> bool:
    """Whether all exponentials of the kernels' terms are of rescaled sums, so that large scores overflow nowhere."""
    nodes = _nodes(texts)
    sums = any(n.op == "reduce" and n.attrs[0] == "rescaled" for n in nodes)
    return sums and not any(n.op in ("exp", "exp2", "pow", "log1p") for n in nodes)


def _nodes(texts: Sequence[KernelTexts]) -> set[Term]:
    return {n for one in texts for store in one.stores for n in subterms(store.term)}


def checks(
    texts: Sequence[KernelTexts], most: int = MOST_PRODUCTS, factor: float = 1.0
) -> Iterator[tuple[KernelTexts, Any]]:
    """For each kernel what is to be checked. most: points of all dims at which all programs run. factor: of random
    inputs; if it is negative, tensors have one sign each, in turn, so that all scores of a row may be far below 0.

    What an earlier kernel stores has the values of its terms, so that each text is checked by itself.
    """
    from ..proofs.kernels.term_values import levels_of
    from ..proofs.texts.check import Reference

    levels = max((levels_of(store.term for store in one.stores) for one in texts), default=1)
    known: dict[str, Any] = {}
    for one in texts:
        given = {name: _drawn(n, name, tensor, factor) for n, (name, tensor) in enumerate(one.inputs.items())}
        stored = {tensor.name: known[tensor.name] for tensor in one.reads if tensor.name in known}
        checked = _check_of(one, given, stored, levels, most)
        yield one, checked
        if one is not texts[-1]:
            reference = Reference(checked)
            known |= {result.name: reference.of(result, None) for result in checked.results}


def _check_of(one: KernelTexts, given: Mapping[str, Any], stored: Mapping[str, Any], levels: int, most: int) -> Any:
    """What is to be checked of a kernel. given: tensors of the call; stored: what earlier kernels give.

    What is added up has memory of its own in the launches; here it has the values that its terms say.
    """
    from ..proofs.texts import check

    made = tuple(check.WrittenTensor(*written) for written in one.made)
    rest = (made, one.sizes, sample(one, most), levels)
    strides = {name: tensor.stride() for name, tensor in one.inputs.items()}
    with_strides = lambda stored: strides | {name: check.contiguous(value.shape) for name, value in stored.items()}
    sums = [check.StoredTerm(s.output.name, _summed(one.kernel, s), s.order) for s in one.stores if s.adds]
    if sums:
        before = check.KernelCheck((), (), {**given, **stored}, with_strides(stored), *rest)
        reference = check.Reference(before)
        stored = {**stored, **{result.name: reference.of(result, None) for result in sums}}
    results = [check.StoredTerm(s.output.name, s.term, s.order, s.places) for s in one.stores if not s.adds]
    calls = tuple(check.Call(**vars(call)) for call in one.calls)
    return check.KernelCheck(calls, tuple(results), {**given, **stored}, with_strides(stored), *rest)


def _summed(kernel: Kernel, store: Store) -> Term:
    """What programs together add up."""
    assert kernel.rows is not None  # which it adds over
    (guard,) = (loop.guard for loop in kernel.loops)
    return sum_over(kernel.rows, store.term if guard is None else where(guard, store.term, const(0.0)))


def sample(one: KernelTexts, most: int) -> tuple[int, ...] | None:
    """The programs that run of a large kernel; None for all of them, as where several launches make a result."""
    count, points = one.calls[0].programs, _points(one)
    if points <= most or len(one.calls) > 1:
        return None
    wanted = max(FEWEST_PROGRAMS, count * most // points)
    return tuple(int(n) for n in np.unique(np.linspace(0, count - 1, wanted).round()))


def _points(one: KernelTexts) -> int:
    """Points of all dims; of a joined kernel those of its products, each of which has one inner dim."""
    kernel, size = one.kernel, lambda d: resolve(d.size, one.sizes)
    dims = dict.fromkeys(d for store in kernel.stores for d in (*store.order, *all_dims(store.term)))
    if one.finish is None:
        return prod(map(size, dims))
    outer = {*kernel.grid, *kernel.around, *kernel.tiled, *(loop.dim for loop in kernel.loops)}
    return prod(map(size, outer)) * max(map(size, {*dims} - outer), default=1)


def _drawn(number: int, name: str, tensor: torch.Tensor, factor: float) -> np.ndarray:
    """The tensor's values; random ones for floats but those that a mask has."""
    own = tensor.detach().cpu()
    if not own.is_floating_point():
        return own.numpy()
    values = own.double().numpy()
    drawn = np.random.default_rng([SEED, *name.encode()]).standard_normal(values.shape) * factor
    drawn = np.abs(drawn) * (-1) ** number if factor < 0 else drawn
    return np.where(np.isfinite(values) & (np.abs(values) < SMALLEST_MASK), drawn, values)
