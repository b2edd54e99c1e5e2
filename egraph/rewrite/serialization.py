"""Terms and rules as plain JSON data and back.

Reading never runs code: it builds every node with the checked constructors, so damaged or hostile data raise TermError.
Shared subterms stay shared. Example: `from_json(to_json(x))` is x.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ..terms.ops import MONOIDS, OPS, make
from ..terms.term import AttributeVariable, Dim, Tensor, Term, TermError
from ..terms.traversal import subterms
from .guard import Guard
from .rule import Rule, refuse_bad

MAX_NODES, MAX_DEPTH = 20_000, 400  # of a term that is read, because functions of terms recurse
PLAIN_FIELDS = {"name": str, "law": str, "both": bool, "exact": str, "source": str, "trusted": bool}  # of a rule


def to_json(root: Term) -> dict:
    """The term as lists of numbers and names: node n is [operation, indices of its arguments, attributes]."""
    place: dict[Term, int] = {}
    nodes: list[list] = []
    for node in subterms(root):
        place[node] = len(nodes)
        nodes.append([node.op, [place[a] for a in node.args], [_write(a) for a in node.attrs]])
    return {"nodes": nodes}


def from_json(data: Any) -> Term:
    """The term that `to_json` wrote. Raises TermError for anything else."""
    try:
        terms: list[Term] = []
        depths: list[int] = []
        if len(data["nodes"]) > MAX_NODES:
            raise TermError(f"a term of {len(data['nodes'])} nodes: over {MAX_NODES}")
        for op, places, attrs in data["nodes"]:
            if not all(type(p) is int and 0 <= p < len(terms) for p in places):
                raise TermError(f"{op}: an argument that is not written before it")
            depths.append(1 + max((depths[p] for p in places), default=0))
            if depths[-1] > MAX_DEPTH:
                raise TermError(f"a term deeper than {MAX_DEPTH} operations")
            terms.append(_node(op, tuple(terms[p] for p in places), tuple(_read(a) for a in attrs)))
        return terms[-1]
    except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise error if isinstance(error, TermError) else TermError(f"not the text of a term: {error}") from error


def rule_to_json(rule: Rule) -> dict:
    """The whole record as data, so that another process can apply the same law."""
    return {
        "name": rule.name,
        "law": rule.law,
        "left": to_json(rule.left),
        "right": to_json(rule.right),
        "variables": [list(v) for v in rule.variables],
        "guards": [[guard.kind, [_write(o) for o in guard.operands]] for guard in rule.guards],
        "both": rule.both,
        "exact": rule.exact,
        "source": rule.source,
        "trusted": rule.trusted,
    }


def rule_from_json(data: Any) -> Rule:
    """The rule that `rule_to_json` wrote. Raises TermError for anything else, and for a record that cannot be a law."""
    try:
        guards = tuple(Guard(kind, tuple(_read(o) for o in operands)) for kind, operands in data["guards"])
        fields = {k: _typed(data[k], kind) for k, kind in PLAIN_FIELDS.items()}
        variables = tuple((str(v), str(kind)) for v, kind in data["variables"])
        left, right = from_json(data["left"]), from_json(data["right"])
        record = Rule(left=left, right=right, variables=variables, guards=guards, **fields)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise error if isinstance(error, TermError) else TermError(f"not the text of a rule: {error}") from error
    refuse_bad(record)
    return record


def _typed(value, kind: type):
    if type(value) is not kind:
        raise TermError(f"not the text of a rule: {value!r} is no {kind.__name__}")
    return value


def statement(rule: Rule) -> str:
    """A digest of what a rule claims. The text of the law, the line and the author do not count."""
    data = rule_to_json(rule)
    return digest([data[part] for part in ("name", "left", "right", "guards", "both")])


def digest(data: object) -> str:
    """The SHA-256 of JSON data, as hexadecimal digits."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def dim_to_json(dim: Dim) -> dict:
    """The dim as data."""
    return _write(dim)


def dim_from_json(data: object) -> Dim:
    """The dim that `dim_to_json` wrote. Raises TermError for anything else."""
    return _expected(data, Dim)


def tensor_to_json(tensor: Tensor) -> dict:
    """The tensor as data."""
    return _write(tensor)


def tensor_from_json(data: object) -> Tensor:
    """The tensor that `tensor_to_json` wrote. Raises TermError for anything else."""
    return _expected(data, Tensor)


def _expected(data, kind):
    value = _read(data)
    if not isinstance(value, kind):
        raise TermError(f"expected a {kind.__name__}, got {data!r}")
    return value


def _write(value):
    match value:
        case Term():
            return {"term": to_json(value)}
        case Dim():
            return {"dim": [value.name, value.size]}
        case Tensor():
            return {"tensor": [value.name, value.dtype, list(value.shape)]}
        case AttributeVariable():
            return {"variable": value.name}
        case float():
            return {"float": repr(value)}
        case bool() | int() | str() | None:
            return value
    raise TermError(f"{value!r} cannot be written")


def _read(data):
    match data:
        case {"term": written}:
            return from_json(written)
        case {"dim": [str(name), int() | str() | None as size]}:
            return Dim(name, size)
        case {"tensor": [str(name), str(dtype), list(shape)]} if all(isinstance(s, (int, str)) for s in shape):
            return Tensor(name, dtype, tuple(shape))
        case {"variable": str(name)}:
            return AttributeVariable(name)
        case {"float": str(text)}:
            return float(text)
        case bool() | int() | str() | None:
            return data
    raise TermError(f"{data!r} is no attribute of a term")


def _node(op: str, args, attrs) -> Term:
    """`make` with the checks that the constructors of terms/ops.py add to it."""
    row = OPS.get(op)
    if row is None:
        raise TermError(f"unknown operation {op!r}")
    kinds = zip(attrs, row.attributes, strict=True)
    of_a_dim = op == "size" and isinstance(attrs[0], Dim)  # in laws
    if not of_a_dim and not all(isinstance(a, (kind, AttributeVariable)) for a, kind in kinds):
        raise TermError(f"{op} does not take the attributes {attrs}")
    if op == "load" and len(args) != len(attrs[0].shape):
        raise TermError(f"{attrs[0].name} has {len(attrs[0].shape)} axes, got {len(args)} indices")
    if op == "reduce" and isinstance(attrs[0], str) and attrs[0] not in MONOIDS:
        raise TermError(f"unknown monoid {attrs[0]!r}")
    return make(op, args, attrs)
