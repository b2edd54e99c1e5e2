"""Compares the two sides of a rule on an instance, in float64.

Where the left side is not NaN, the right side must equal it; rules of both directions and bitwise ones promise more.
The slack for rounding is measured by adding noise. A bitwise rule has no slack: its sides are compared bit for bit,
with results rounded to each floating dtype. Example: for x + 0 = x with x = -0.0 the signs differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..rewrite.pattern_rule import PatternRule
from ..rewrite.rule import Rule
from ..terms.evaluate import evaluate, evaluate_all
from ..terms.ops import make, var, within_range
from ..terms.sizes import resolve
from ..terms.term import FLOATS, Term, TermError
from ..terms.traversal import all_dims, rebuild, subterms
from .samples import Instance

RTOL = 1e-9
MIN_COMPARED_MAGNITUDE = 1e-280  # smaller results underflow differently on the two sides
BITWISE_IN = ("float64", "float32", "bfloat16", "float16")  # the dtypes that are used instead of float32
PICKING = ("max", "min", "rescaled")  # monoids whose result is one of the elements; of states, the largest scale
LEAST_NORMAL = 2.0**-1022
VANISHING = ("exp", "exp2", "mul", "div")
ARITHMETIC = (*VANISHING, "add", "sub", "pow", "reduce")
EXACT = ("lt", "le", "eq", "where", "maximum", "minimum", "neg", "abs", "floor", "finite", "cast")
NOISE = 1e-12  # relative error added to every operation, to measure how much rounding can change a result


@dataclass(frozen=True)
class Disagreement:
    """How the sides of an instance differ: as text, and as arrays if both sides can be evaluated."""

    what: str
    left: np.ndarray | None
    right: np.ndarray | None
    instance: Instance

    def __str__(self) -> str:
        return f"{self.what}\n{self.instance}"


def difference(instance: Instance) -> Disagreement | None:
    """How the sides of the instance differ; None if they agree."""
    rule, why = instance.rule, ill_typed(instance.left, instance.right)
    if why:
        return Disagreement(why, None, None, instance)
    rounds = any(n.dtype in FLOATS for side in instance.sides for n in subterms(side))
    dtypes = (None,) if rule.exact != "bitwise" else bitwise_in(rule) if rounds else BITWISE_IN[:1]
    return next(filter(None, (_difference_in(instance, dtype) for dtype in dtypes)), None)


def bitwise_in(rule: Rule | PatternRule) -> tuple[str, ...]:
    """The dtypes in which equal bits are tested. A rule that names float32 means it: nothing stands for it."""
    rights = rule.rights if isinstance(rule, PatternRule) else (rule.right,)
    named = [a for side in (rule.left, *rights) if isinstance(side, Term) for n in subterms(side) for a in n.attrs]
    named += [o for g in rule.guards for o in g.operands]
    return ("float32",) if "float32" in named else BITWISE_IN


def _difference_in(instance: Instance, rounding: str | None) -> Disagreement | None:
    """How the sides differ if every result is rounded to a dtype. Without a dtype, a slack is measured."""
    if rounding is not None and not all(within_range(a, rounding).all() for a in instance.arrays.values()):
        return None  # the dtype does not hold these numbers
    dims = sorted({dim for side in instance.sides for dim in side.dims})
    sides = _values(instance, dims, rounding)
    if not isinstance(sides, list):
        return sides
    for number, (left, right) in enumerate(zip(*sides)):
        if not _wrong(instance, left, right, 0.0).any():
            continue
        if rounding is None and left.dtype.kind == "f":
            slack = _slack(instance, dims, number, left, right)
            if not _wrong(instance, left, right, slack).any() or _leaves_the_range(instance):
                continue
        shown = f"left side:  {instance.left} = {left.tolist()}\nright side: {instance.right} = {right.tolist()}"
        rounded = "" if rounding in (None, "float64") else f"\nwith every result rounded to {rounding}"
        return Disagreement(shown + rounded, left, right, instance)
    return None


def _values(instance: Instance, dims, rounding: str | None) -> list[tuple[np.ndarray, ...]] | Disagreement | None:
    """The values of both sides; None where the left side means nothing, a disagreement where the right side does."""
    sides: list[tuple[np.ndarray, ...]] = []
    for side in instance.sides:
        try:
            sides.append(_parts(evaluate(side, instance.arrays, dims, rounding=rounding)))
        except (TypeError, ValueError, IndexError) as error:  # of numpy: a negated bool, a place beyond an axis
            return Disagreement(f"{side} means nothing here: {error}", None, None, instance) if sides else None
    return sides


def ill_typed(left: Term, right: Term | TermError) -> str:
    """Why the dtypes of the sides differ; "" if they agree. A weak literal agrees with any floating dtype."""
    if isinstance(right, TermError):
        return f"{left} would become a term that means nothing: {right}"
    if left.dtype == right.dtype or "float" in (left.dtype, right.dtype):
        return ""
    return f"{left} is {left.dtype}, {right} is {right.dtype}"


def _parts(value) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, value)) if isinstance(value, tuple) else (np.asarray(value),)


def _wrong(instance: Instance, left: np.ndarray, right: np.ndarray, slack) -> np.ndarray:
    """Where the right side is not what the law promises.

    A bitwise law promises the sign of a zero, too. It does not if it has a maximum or minimum: of 0 and -0 that may
    give either.
    """
    left, right = (np.asarray(x, dtype=float) for x in np.broadcast_arrays(left, right))
    with np.errstate(invalid="ignore"):
        same = (left == right) | (np.isnan(left) & np.isnan(right)) | (np.abs(left - right) <= slack) | np.isinf(slack)
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
    """Whether the rule has a maximum or a minimum."""
    nodes = (n for side in instance.sides for n in subterms(side))
    return any(n.op in ("maximum", "minimum") or (n.op == "reduce" and n.attrs[0] in PICKING) for n in nodes)


def _leaves_the_range(instance: Instance) -> bool:
    """Whether an exponential, sum, product or quotient of finite numbers is too large or too small for float64.

    Laws are about real numbers, so such an instance says nothing. A law that drops a rounding ("excess precision") also
    drops its overflow, but not the overflow of a literal, whose value is known where the law is used.
    """
    drops = instance.rule.exact == "excess precision"
    for side in instance.sides:
        values = evaluate_all(side, instance.arrays)
        for node, value in values.items():
            counts = node.op in ARITHMETIC or (node.op == "cast" and drops and node.args[0].op != "const")
            if counts and _out_of_range(node, value, [values[a] for a in node.args]):
                return True
    return False


def _out_of_range(node: Term, value, args) -> bool:
    """Whether finite operands give an infinite result, or one below the normal numbers."""
    if any(isinstance(x, tuple) for x in (value, *args)) or np.asarray(value).dtype.kind != "f":
        return False
    if node.op == "reduce":
        tiny = node.attrs[0] == "prod" and np.all(args[0]) and (np.abs(value) < LEAST_NORMAL).any()
        beyond = node.attrs[0] in ("sum", "prod") and (tiny or np.isinf(value).any())
        return bool(np.isfinite(args[0]).all() and beyond)
    operands = np.broadcast_arrays(*args)
    real = np.all([np.isfinite(x) for x in operands], axis=0)
    if node.op in ("mul", "div", "pow"):
        real &= np.all([x != 0 for x in operands], axis=0)  # a division by zero is no overflow
    vanishes = (np.abs(value) < LEAST_NORMAL) & (node.op in VANISHING)
    return bool((real & (np.isinf(value) | vanishes)).any())


def _slack(instance: Instance, dims, number: int, left, right) -> np.ndarray:
    """How much the sides may differ by rounding: relative to their values, and to their changes under noise.

    It is infinite where noise makes a finite result infinite or undefined, or the reverse: there, rounding decides.
    """
    with np.errstate(invalid="ignore"):
        slack = RTOL * np.nan_to_num(np.maximum(np.abs(left), np.abs(right)), posinf=0.0) + MIN_COMPARED_MAGNITUDE
    for seed, side in enumerate(instance.sides):
        runs = [_noisy(side, instance.arrays, dims, 3 * seed + k)[number] for k in range(3)]
        with np.errstate(invalid="ignore"):
            spread = np.max(runs, axis=0) - np.min(runs, axis=0)
        slack = slack + np.nan_to_num(spread, posinf=0.0, neginf=0.0) * (RTOL / NOISE)
        own = (left, right)[seed]
        slack = np.where(np.any([np.isfinite(run) != np.isfinite(own) for run in runs], axis=0), np.inf, slack)
    return slack


def _is_exact(node: Term) -> bool:
    """Whether the operation does not round: its result is an operand, a truth value or an integer."""
    return node.op in EXACT or (node.op == "reduce" and node.attrs[0] in ("max", "min", "any", "all"))


def _noisy(root: Term, arrays, dims, seed: int) -> tuple[np.ndarray, ...]:
    """The values of the term if the operands of every rounding operation have a random relative error of NOISE.

    Operations that compare, choose or jump get exact operands.
    """
    generator = np.random.default_rng(seed)
    noise: dict[str, np.ndarray] = {}
    order = all_dims(root)

    def err(node: Term) -> Term:
        name = f"noise {len(noise)}"
        shape = [resolve(d.size, {}) if d in node.dims else 1 for d in order]
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
