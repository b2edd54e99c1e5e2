"""Terms over named dimensions: the intermediate representation of onepass.

A Term is frozen and interned: equal terms are the same object, and so are equal dims and tensors. Every operation is
pointwise in all dims but the one that a reduce binds. So free dims and the dtype of a term are computed from its parts.
Example: exp(x[i] - y[j]) has the free dims i and j. The meanings of operations are in ops.py, the laws in rules/.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self
from weakref import WeakValueDictionary

from ..forks import lock

PAIR = "pair of "  # prefix of a rescaled state's dtype: a (scale, mantissa) pair meaning mantissa · e^scale
FLOATS = ("float", "float16", "bfloat16", "float32", "float64")  # "float" is weak: it adapts, like a Python scalar


# Functions of modules that import this one: ops.py sets "make" and "terms", printing.py sets "show".
HOOKS: dict[str, Callable] = {}
_LOCK = lock()  # held while a term, a dim or a tensor is made, so that two threads do not make two of one


class Once:
    """A record of which equal ones are one object: they are compared and hashed as objects, at no cost."""

    _known: ClassVar[WeakValueDictionary] = WeakValueDictionary()

    @classmethod
    def _of(cls, **values: object) -> Self:
        key = (cls, *values.values())
        found = cls._known.get(key)
        if found is not None:
            return found
        with _LOCK:
            found = cls._known.get(key)
            if found is None:
                found = object.__new__(cls)
                found.__dict__.update(values)
                cls._known[key] = found
        return found

    def __reduce__(self):
        return type(self), tuple(self.__dict__.values())


@dataclass(frozen=True, eq=False, init=False)
class Dim(Once):
    """A named axis. `size` is an int or the text of a symbolic size; None: a dim variable of a pattern."""

    name: str
    size: int | str | None = None

    def __new__(cls, name: str, size: int | str | None = None):
        return cls._of(name=name, size=size)

    def __lt__(self, other: Dim) -> bool:
        return (self.name, self.size) < (other.name, other.size)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False, init=False)
class Tensor(Once):
    """A materialised input: its name in the region, element type, and shape (ints or texts of symbolic sizes)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] = ()

    def __new__(cls, name: str, dtype: str, shape: tuple[int | str, ...] = ()):
        return cls._of(name=name, dtype=dtype, shape=shape)


@dataclass(frozen=True)
class AttributeVariable:
    """A variable of a pattern for an attribute: a dtype or a monoid."""

    name: str

    def __str__(self) -> str:
        return self.name


class TermError(TypeError):
    """A term that is not well-formed: an unknown operation, a wrong arity, operands of different dtypes."""


class Term:
    """One node. Build it with the constructors of ops.py, never directly."""

    __slots__ = ("__weakref__", "args", "attrs", "dims", "dtype", "op")
    op: str
    args: tuple[Term, ...]
    attrs: tuple
    dims: frozenset[Dim]
    dtype: str
    _interned: WeakValueDictionary = WeakValueDictionary()

    def __new__(cls, op: str, args: tuple[Term, ...] = (), attrs: tuple = (), *, dims=frozenset(), dtype="float"):
        with _LOCK:
            found = cls.known(op, args, attrs)
            if found is not None:
                return found
            self = super().__new__(cls)
            values = (op, args, attrs, dims, dtype)
            for name, value in zip(("op", "args", "attrs", "dims", "dtype"), values, strict=True):
                object.__setattr__(self, name, value)
            cls._interned[_key(op, args, attrs)] = self
            return self

    @classmethod
    def known(cls, op: str, args: tuple[Term, ...], attrs: tuple) -> Term | None:
        """The term of these parts, if there is one: it is well-formed then, and its dims are known."""
        return cls._interned.get(_key(op, args, attrs))

    def __setattr__(self, name, value):
        raise AttributeError("a Term is frozen")

    def __reduce__(self):
        return HOOKS["make"], (self.op, self.args, self.attrs)

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
        """Always raises TermError: Python would use the truth value of a term in `<`, `max`, `sorted` or `if`."""
        raise TermError(
            "terms have no order in Python (<, >, max, min, if): "
            "write lt, le, eq, where, maximum or minimum of onepass.egraph.ops"
        )

    __le__ = __gt__ = __ge__ = __lt__

    def __repr__(self) -> str:
        return HOOKS["show"](self)


def _key(op: str, args: tuple[Term, ...], attrs: tuple) -> tuple:
    """What equal terms have in common. The literals 1, 1.0 and True are equal in Python, and 0.0 is -0.0."""
    return (op, args, attrs) if op != "const" else (op, *((type(a), repr(a)) for a in attrs))


def _binary(op: str, *operands):
    return HOOKS["make"](op, HOOKS["terms"](operands))
