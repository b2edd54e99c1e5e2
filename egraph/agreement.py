"""Do the two sides of a rule agree on an instance? In float64, with a slack for rounding that is measured, not guessed.

Where the left side is not NaN, the right side equals it; rules of both directions and bitwise ones promise more.
A bitwise rule has no slack: its sides are compared bit for bit, with every result rounded to each floating dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .evaluate import evaluate
from .instances import Instance
from .ops import make, var
from .rule import Rule
from .term import FLOATS, Term, TermError, all_dims, rebuild, subterms

RTOL = 1e-9
TINY = 1e-280  # below this, results underflow differently on the two sides
BITWISE_IN = ("float64", "float32", "bfloat16", "float16")  # what bits are compared in: each stands for float32
PICKING = ("max", "min", "rescaled")  # monoids that give one of what they fold; of states, the largest scale
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
    rule, dims = instance.rule, sorted(instance.left.dims | instance.right.dims)
    sides = [
        _parts(evaluate(side, instance.arrays, dims, rounding=rounding)) for side in (instance.left, instance.right)
    ]
    for number, (left, right) in enumerate(zip(*sides)):
        if not _wrong(rule, left, right, 0.0).any():
            continue
        if rounding is None and left.dtype.kind == "f":
            slack = _slack(instance, dims, number, left, right)
            if not _wrong(rule, left, right, slack).any():
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


def _wrong(rule: Rule, left: np.ndarray, right: np.ndarray, slack) -> np.ndarray:
    """Where the right side is not what the law promises.

    Equal bits are those of a zero's sign too, unless a maximum picks it: of 0 and -0 it may give either.
    """
    left, right = (np.asarray(x, dtype=float) for x in np.broadcast_arrays(left, right))
    with np.errstate(invalid="ignore"):
        same = (left == right) | (np.isnan(left) & np.isnan(right)) | (np.abs(left - right) <= slack)
    if rule.exact == "bitwise" and not _picks(rule):
        same &= (left != 0) | (np.signbit(left) == np.signbit(right))
    promised = ~np.isnan(left)
    if rule.both:
        promised |= np.isfinite(right)
    if rule.defined_alike:
        promised |= True
    return promised & ~same


def _picks(rule: Rule) -> bool:
    """Whether a maximum or a minimum stands in the rule."""
    nodes = (n for side in (rule.left, rule.right) for n in subterms(side))
    return any(n.op in ("maximum", "minimum") or (n.op == "reduce" and n.attrs[0] in PICKING) for n in nodes)


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


def _noisy(root: Term, arrays, dims, seed: int) -> tuple[np.ndarray, ...]:
    """The term's values when every floating operation errs by a random relative NOISE, element by element."""
    generator = np.random.default_rng(seed)
    noise: dict[str, np.ndarray] = {}
    order = all_dims(root)

    def change(node: Term, args):
        again = make(node.op, args, node.attrs)
        if node.dtype not in FLOATS or node.op == "const":
            return again
        name = f"noise {len(noise)}"
        shape = [d.size if d in node.dims else 1 for d in order]
        noise[name] = 1.0 + NOISE * generator.standard_normal(shape)
        return again * var(name, "float")

    noisy = rebuild(root, change)
    return _parts(evaluate(noisy, {**arrays, **noise}, dims))
