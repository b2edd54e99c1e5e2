"""A text without choices that change no result, and texts in which these choices are made otherwise.

The second kind shows that the first is allowed: whatever is chosen, a run gives the same. Example: when the scale of a
total grows, it may be taken over or not, so that of two texts that differ in this condition both are right.
"""

import ast
from collections.abc import Iterator
from copy import deepcopy

from tests.proofs.texts.tile_masks import ABSENT, mask_of

BEYOND = ("True", "False", "({row} * 5 + {column} * 3) % 7 < 3", "{row} % 2 == 0")  # when an element there may count


def without_choices(text: str) -> str:
    """A text in which free choices have one spelling. Each row of the first tile has to have an element."""
    tree = ast.parse(text)
    products = _products(tree)
    return ast.unparse(_Plain(products).visit(tree))


def _products(tree: ast.Module) -> dict[str, set[str]]:
    """Names that are assigned a product, with its factors."""
    return {
        node.targets[0].id: {ast.unparse(node.value.left), ast.unparse(node.value.right)}
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Mult)
    }


class _Plain(ast.NodeTransformer):
    def __init__(self, products: dict[str, set[str]]):
        self.products = products

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) != "gl.where":
            return node
        condition, one, other = node.args
        if is_policy(node):
            return ast.Call(ast.Name("either"), [one, other], [])
        if not isinstance(condition, ast.Compare):
            return node
        left, right = ast.unparse(condition.left), ast.unparse(condition.comparators[0])
        factors = self.products.get(ast.unparse(one), ())
        match condition.ops[0]:
            # Equal to what is chosen, or -inf, which no row is that has an element.
            case ast.Eq() if left == ast.unparse(other) and right in (ast.unparse(one), ABSENT):
                return other
            case ast.NotEq() if left in factors and right == ast.unparse(other) == "0.0":
                return one  # a product with 0 is 0
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        return ast.Pass() if ast.unparse(node.targets[0]) == ast.unparse(node.value) else node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        last = node.body[-1]
        if all(isinstance(s, ast.Pass) for s in node.body):
            return ast.Pass()
        if exists_in(last) and not node.orelse:
            return ast.Assign(last.targets, ast.Call(ast.Name("counted"), [last.value.args[1]], []), lineno=0)
        return node


def exists_in(node: ast.stmt) -> dict[str, str]:
    """The names that say of what a masked value counts that it exists, with the axis of the tile that each is along."""
    mask = mask_of(node.value) if isinstance(node, ast.Assign) else None
    parts = [n for n in ast.walk(mask) if isinstance(n, ast.Subscript)] if mask else []
    return {
        name: ast.unparse(part).removeprefix(name)
        for part in parts
        if (name := ast.unparse(part.value)).endswith("_exists")
    }


def is_policy(node: ast.AST) -> bool:
    """Whether it is a choice between an old scale and a new one, by how far the new one is above."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "gl.where":
        return False
    condition, one, other = map(ast.unparse, node.args)
    return condition.startswith(f"{one} ") and f" {other} " in condition


def otherwise(text: str) -> Iterator[str]:
    """Texts in which each free choice is made in other ways."""
    tree = ast.parse(text)
    for place, node in enumerate(ast.walk(tree)):
        for change in _changes(node):
            other = deepcopy(tree)
            change(list(ast.walk(other))[place])
            yield ast.unparse(ast.fix_missing_locations(other))


def _changes(node):
    if is_policy(node):
        for condition in ("{0} < {1}", "{0} > {1}", "{0} == {0}", "{0} != {0}"):
            said = condition.format(*map(ast.unparse, node.args[1:]))
            yield lambda found, said=said: found.args.__setitem__(0, ast.parse(said, mode="eval").body)
    if isinstance(node, ast.If) and len(exists := exists_in(node.body[-1])) == 2:
        mask = ast.unparse(node.body[-1].value.args[0])
        sizes = {ast.unparse(s.targets[0]): ast.unparse(s.value) for s in node.body if isinstance(s, ast.Assign)}
        parts = {f"{sizes[name].split()[0]}{axis}": sizes[name].split()[-1] for name, axis in exists.items()}
        row, column = sorted(parts, key=lambda part: part.endswith("[None, :]"))
        beyond = " | ".join(f"({part} >= {size})" for part, size in parts.items())
        for counts in BEYOND:
            said = f"({mask}) | (({beyond}) & ({counts.format(row=row, column=column)}))"
            yield lambda found, said=said: _mask_always(found, said)


def _mask_always(found: ast.If, mask: str) -> None:
    found.test = ast.Constant(True)
    found.body[-1].value.args[0] = ast.parse(mask, mode="eval").body
