"""Terms over named dimensions: the one intermediate form of onepass.

A Term is frozen and interned: equal terms are the same object. Every operation is pointwise in all dims except the one
that a reduce binds, so free dims and dtype are computed, never written down. Meaning lives in ops.py, laws in rules/.
Everyone uses this module; it imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakValueDictionary

PAIR = "pair of "  # prefix of a rescaled state's dtype: a (scale, mantissa) pair meaning mantissa · e^scale
FLOATS = ("float", "float16", "bfloat16", "float32", "float64")  # "float" is weak: it adapts, like a Python scalar


@dataclass(frozen=True, order=True)
class Dim:
    """A named axis. `size` is an int, or the text of a symbolic size; None makes it a dim variable of a pattern."""

    name: str
    size: int | str | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Tensor:
    """A materialised input: its name in the region, element type, and shape (ints or texts of symbolic sizes)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class AttributeVariable:
    """Stands for an attribute in a pattern: any dtype, any monoid."""

    name: str

    def __str__(self) -> str:
        return self.name


class TermError(TypeError):
    """A term that no program can mean: unknown operation, wrong arity, operands of two dtypes."""


class Term:
    """One node. Build it with the constructors of ops.py, never directly."""

    __slots__ = ("__weakref__", "_hash", "args", "attrs", "dims", "dtype", "op")
    op: str
    args: tuple[Term, ...]
    attrs: tuple
    dims: frozenset[Dim]
    dtype: str
    _interned: WeakValueDictionary = WeakValueDictionary()

    def __new__(cls, op: str, args: tuple[Term, ...] = (), attrs: tuple = (), *, dims=frozenset(), dtype="float"):
        key = (op, args, tuple((type(a), repr(a) if isinstance(a, float) else a) for a in attrs))
        found = cls._interned.get(key)
        if found is not None:
            return found
        self = super().__new__(cls)
        for name, value in zip(("op", "args", "attrs", "dims", "dtype"), (op, args, attrs, dims, dtype), strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_hash", hash(key))
        cls._interned[key] = self
        return self

    def __setattr__(self, name, value):
        raise AttributeError("a Term is frozen")

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self):
        from .ops import make

        return make, (self.op, self.args, self.attrs)

    def __add__(self, other):
        return _binary("add", self, other)

    def __radd__(self, other):
        return _binary("add", other, self)

    def __sub__(self, other):
        return _binary("sub", self, other)

    def __rsub__(self, other):
        return _binary("sub", other, self)

    def __mul__(self, other):
        return _binary("mul", self, other)

    def __rmul__(self, other):
        return _binary("mul", other, self)

    def __truediv__(self, other):
        return _binary("div", self, other)

    def __rtruediv__(self, other):
        return _binary("div", other, self)

    def __floordiv__(self, other):
        return _binary("floordiv", self, other)

    def __mod__(self, other):
        return _binary("mod", self, other)

    def __pow__(self, other):
        return _binary("pow", self, other)

    def __rpow__(self, other):
        return _binary("pow", other, self)

    def __neg__(self):
        return _binary("neg", self)

    def __abs__(self):
        return _binary("abs", self)

    def __and__(self, other):
        return _binary("and", self, other)

    def __or__(self, other):
        return _binary("or", self, other)

    def __invert__(self):
        return _binary("not", self)

    def __lt__(self, other):
        """Refused: Python would ask the result of `<`, `max`, `sorted` or `if` for its truth."""
        raise TermError(
            "terms have no order in Python (<, >, max, min, if): "
            "write lt, le, eq, where, maximum or minimum of onepass.egraph.ops"
        )

    __le__ = __gt__ = __ge__ = __lt__

    def __repr__(self) -> str:
        from .printing import show

        return show(self)


def _binary(op: str, *operands):
    from .ops import make, terms

    return make(op, terms(operands))


def subterms(root: Term, whole: Callable[[Term], bool] = lambda term: False) -> Iterator[Term]:
    """Every distinct subterm once, arguments before the terms that use them; none below one that is `whole`."""
    seen: set[Term] = set()
    stack: list[tuple[Term, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            if not whole(node):
                stack.extend((a, False) for a in reversed(node.args))


def rebuild(root: Term, change: Callable[[Term, tuple[Term, ...]], Term]) -> Term:
    """Bottom-up map: `change(node, new_args)` gives the new node; shared subterms are visited once."""
    done: dict[Term, Term] = {}
    for node in subterms(root):
        done[node] = change(node, tuple(done[a] for a in node.args))
    return done[root]


def substitute(root: Term, mapping: dict[Term, Term]) -> Term:
    """Replaces whole subterms. The caller sees to it that no free dim of a replacement is bound on the way up."""
    from .ops import make

    def change(node, args):
        return mapping.get(node) or (node if args == node.args else make(node.op, args, node.attrs))

    return rebuild(root, change)


def rename_dims(root: Term, mapping: dict[Dim, Dim]) -> Term:
    """Renames dims, bound ones included; the mapping must not merge a bound dim with one free in its body."""
    from .ops import make

    def change(node, args):
        attrs = tuple(mapping.get(a, a) if isinstance(a, Dim) else a for a in node.attrs)
        return make(node.op, args, attrs)

    return rebuild(root, change)


@lru_cache(4096)
def reduces(root: Term) -> tuple[Term, ...]:
    """Every distinct reduction in the term, inner ones first. Kept, as planning asks again and again."""
    return tuple(t for t in subterms(root) if t.op == "reduce")


def factors(product: Term) -> list[Term]:
    """The factors of a product of products."""
    if product.op != "mul":
        return [product]
    return [f for a in product.args for f in factors(a)]


def all_dims(root: Term) -> list[Dim]:
    """Every dim that occurs, free or bound, in order of first occurrence."""
    return list(dict.fromkeys(a for t in subterms(root) for a in t.attrs if isinstance(a, Dim)))


def tensors(root: Term) -> list[Tensor]:
    """Every tensor that is loaded, in order of first occurrence."""
    return list(dict.fromkeys(a for t in subterms(root) for a in t.attrs if isinstance(a, Tensor)))
