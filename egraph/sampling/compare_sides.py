"""Do the two sides of a rule agree on an instance? In float64, with a slack for rounding that is measured, not guessed.

Where the left side is not NaN, the right side equals it; rules of both directions and bitwise ones promise more.
A bitwise rule has no slack: its sides are compared bit for bit, with every result rounded to each floating dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..terms.evaluate import evaluate, evaluate_all
from ..terms.ops import make, var
from ..terms.term import FLOATS, Term, TermError
from ..terms.traversal import all_dims, rebuild, subterms
from .samples import Instance

RTOL = 1e-9
TINY = 1e-280  # below this, results underflow differently on the two sides
BITWISE_IN = ("float64", "float32", "bfloat16", "float16")  # what bits are compared in: each stands for float32
PICKING = ("max", "min", "rescaled")  # monoids that give one of what they fold; of states, the largest scale
LEAST_NORMAL = 2.0**-1022
VANISHING = ("exp", "exp2", "mul", "div")
ARITHMETIC = (*VANISHING, "add", "sub", "pow", "reduce")
EXACT = ("lt", "le", "eq", "where", "maximum", "minimum", "neg", "abs", "floor", "finite", "cast")
NOISE = 1e-12  # relative error put into every operation to learn how far rounding can carry


@dataclass(frozen=True)
class Difference:
    """How the sides of an instance differ: in words, and as arrays where both can be evaluated."""

    what: str
    left: np.ndarray | None
    right: np.ndarray | None
    instance: Instance

    def __str__(self) -> str:
        return f"{self.what}\n{self.instance}"


def difference(instance: Instance) -> Difference | None:
    """What is wrong with an instance, or None."""
    rule, why = instance.rule, ill_typed(instance.left, instance.right)
    if why:
        return Difference(why, None, None, instance)
    rounds = any(n.dtype in FLOATS for side in (instance.left, instance.right) for n in subterms(side))
    dtypes = (None,) if rule.exact != "bitwise" else BITWISE_IN if rounds else BITWISE_IN[:1]
    return next(filter(None, (_difference_in(instance, dtype) for dtype in dtypes)), None)


def _difference_in(instance: Instance, rounding: str | None) -> Difference | None:
    """What is wrong where every result is rounded to a dtype; None for none: then a slack is measured."""
    dims = sorted(instance.left.dims | instance.right.dims)
    sides = [
        _parts(evaluate(side, instance.arrays, dims, rounding=rounding)) for side in (instance.left, instance.right)
    ]
    for number, (left, right) in enumerate(zip(*sides)):
        if not _wrong(instance, left, right, 0.0).any():
            continue
        if rounding is None and left.dtype.kind == "f":
            slack = _slack(instance, dims, number, left, right)
            if not _wrong(instance, left, right, slack).any() or _leaves_the_range(instance):
                continue
        shown = f"left side:  {instance.left} = {left.tolist()}\nright side: {instance.right} = {right.tolist()}"
        rounded = "" if rounding in (None, "float64") else f"\nwith every result rounded to {rounding}"
        return Difference(shown + rounded, left, right, instance)
    return None


def ill_typed(left: Term, right: Term | TermError) -> str:
    """Why the right side cannot stand for the left, whatever the values; weak literals take any floating dtype."""
    if isinstance(right, TermError):
        return f"{left} would become a term that means nothing: {right}"
    if left.dtype == right.dtype or "float" in (left.dtype, right.dtype):
        return ""
    return f"{left} is {left.dtype}, {right} is {right.dtype}"


def _parts(value) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, value)) if isinstance(value, tuple) else (np.asarray(value),)


def _wrong(instance: Instance, left: np.ndarray, right: np.ndarray, slack) -> np.ndarray:
    """Where the right side is not what the law promises.

    Equal bits are those of a zero's sign too, unless a maximum picks it: of 0 and -0 it may give either.
    """
    left, right = (np.asarray(x, dtype=float) for x in np.broadcast_arrays(left, right))
    with np.errstate(invalid="ignore"):
        same = (left == right) | (np.isnan(left) & np.isnan(right)) | (np.abs(left - right) <= slack)
    rule = instance.rule
    if rule.exact == "bitwise" and not _picks(instance):
        same &= (left != 0) | (np.signbit(left) == np.signbit(right))
    promised = ~np.isnan(left)
    if rule.both:
        promised |= np.isfinite(right)
    if rule.defined_alike:
        promised |= True
    return promised & ~same


def _picks(instance: Instance) -> bool:
    """Whether a maximum or a minimum stands in the rule."""
    nodes = (n for side in (instance.left, instance.right) for n in subterms(side))
    return any(n.op in ("maximum", "minimum") or (n.op == "reduce" and n.attrs[0] in PICKING) for n in nodes)


def _leaves_the_range(instance: Instance) -> bool:
    """Whether an exponential, sum, product or quotient of real numbers is too large or too small for float64.

    Laws are about real numbers: such an instance says nothing. A law that leaves out a rounding leaves out its
    overflow, too, but not that of a literal, which is known where the law is used.
    """
    drops = instance.rule.exact == "excess precision"
    for side in (instance.left, instance.right):
        values = evaluate_all(side, instance.arrays)
        for node, value in values.items():
            counts = node.op in ARITHMETIC or (node.op == "cast" and drops and node.args[0].op != "const")
            if counts and _out_of_range(node, value, [values[a] for a in node.args]):
                return True
    return False


def _out_of_range(node: Term, value, args) -> bool:
    """Whether real operands give an infinite result, or one too small to be a normal number."""
    if any(isinstance(x, tuple) for x in (value, *args)) or np.asarray(value).dtype.kind != "f":
        return False
    if node.op == "reduce":
        return node.attrs[0] in ("sum", "prod") and bool(np.isfinite(args[0]).all() and np.isinf(value).any())
    operands = np.broadcast_arrays(*args)
    real = np.all([np.isfinite(x) for x in operands], axis=0)
    if node.op in ("mul", "div", "pow"):
        real &= np.all([x != 0 for x in operands], axis=0)  # a quotient by zero is infinite, not too large
    vanishes = (np.abs(value) < LEAST_NORMAL) & (node.op in VANISHING)
    return bool((real & (np.isinf(value) | vanishes)).any())


def _slack(instance: Instance, dims, number: int, left, right) -> np.ndarray:
    """How far apart rounding can carry the sides: relative to them, and to what noise in every operation does."""
    with np.errstate(invalid="ignore"):
        slack = RTOL * np.nan_to_num(np.maximum(np.abs(left), np.abs(right)), posinf=0.0) + TINY
    for seed, side in enumerate((instance.left, instance.right)):
        runs = [_noisy(side, instance.arrays, dims, 3 * seed + k)[number] for k in range(3)]
        with np.errstate(invalid="ignore"):
            spread = np.max(runs, axis=0) - np.min(runs, axis=0)
        slack = slack + np.nan_to_num(spread, posinf=0.0, neginf=0.0) * (RTOL / NOISE)
    return slack


def _is_exact(node: Term) -> bool:
    """Whether a result is not rounded: it is one of the operands, or jumps."""
    return node.op in EXACT or (node.op == "reduce" and node.attrs[0] in ("max", "min", "any", "all"))


def _noisy(root: Term, arrays, dims, seed: int) -> tuple[np.ndarray, ...]:
    """The term's values when the operands of every operation that rounds err by a random relative NOISE.

    What compares, chooses or jumps gets its operands as they are: what is read is exact there.
    """
    generator = np.random.default_rng(seed)
    noise: dict[str, np.ndarray] = {}
    order = all_dims(root)

    def err(node: Term) -> Term:
        name = f"noise {len(noise)}"
        shape = [d.size if d in node.dims else 1 for d in order]
        noise[name] = 1.0 + NOISE * generator.standard_normal(shape)
        return node * var(name, "float")

    def change(node: Term, args):
        if node.op in ("load", "const") or _is_exact(node):
            return make(node.op, args, node.attrs)
        args = tuple(err(a) if a.dtype in FLOATS and (a.op == "load" or _is_exact(a)) else a for a in args)
        again = make(node.op, args, node.attrs)
        return err(again) if node.dtype in FLOATS else again

    noisy = rebuild(root, change)
    return _parts(evaluate(noisy, {**arrays, **noise}, dims))
