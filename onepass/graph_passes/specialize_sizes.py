"""Turns symbolic widths of rows, sizes of pages, and numbers of heads that are mixed or share keys, into numbers, under
guards.

A kernel holds them whole in a tile, so it is made for one number. Lengths, batch sizes and other heads stay symbolic; a
length that is cut into blocks gets a guard that the blocks fill it. What the user marked as dynamic is never fixed,
because that would raise. Example: of (batch, length, 64), with all sizes symbolic, only 64 becomes a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import FloorDiv, Mod

from ..graph.axes import batch_sizes
from ..graph.nodes import value_of_node
from ..graph.op_kinds import Trait, has_trait, kind_of, name_of
from ..graph.survey import table_and_positions
from ..regions.region import Region

MAX_WIDTH_OF_A_TILE = 512
ENABLE_GQA = 7  # the position of this argument of torch's attention
LINEAR = Trait.ARITHMETIC | Trait.SCALES


def specialize_widths(region: Region, mixed: Mapping[fx.Node, Sequence[int | torch.SymInt]]) -> None:
    """Guards the widths of the region's inputs: sizes that are the last axis of matrices, and lengths nowhere.

    A view such as k.mT has two such axes: the last one, and the last one in memory, which is the last one of k. Torch
    takes equal sizes for one: where a tensor has as many heads as its rows are wide, that number is a width.
    mixed: for each mixture of the graph the sizes that it sums over or makes; those of the region are guarded too.
    """
    sizes = list(_axis_sizes(region.inputs))
    known = {str(size.node.expr): size for size, _ in sizes}
    lengths = _lengths(region, known, {str(size.node.expr) for size, is_last in sizes if not is_last})
    widths = [size for text, size in known.items() if text not in lengths]
    heads = [size for node in region.nodes for size in (*mixed.get(node, ()), *_grouped_heads(node))]
    found = _page_sizes(region.nodes) | _shared_heads(region.nodes, known)
    for size in (*widths, *heads, *map(known.get, found & known.keys())):
        if not isinstance(size, torch.SymInt) or size.node.expr.is_Integer or not size.node.has_hint():
            continue
        if 1 < size.node.hint <= MAX_WIDTH_OF_A_TILE and not _is_marked_dynamic(size):
            int(size)  # This adds the guard.


def number_of_guards(region: Region) -> int:
    """A number that grows whenever torch learns that sizes are numbers, equal, or divisible; 0 without symbols."""
    for node in region.inputs:
        value = value_of_node(node)
        for size in (*getattr(value, "shape", ()), value):
            if isinstance(size, torch.SymInt):
                return size.node.shape_env._version_counter
    return 0


def _axis_sizes(inputs: Iterable[fx.Node]) -> Iterator[tuple[torch.SymInt, bool]]:
    """Every symbolic size of an axis, and whether its tensor has it as a last axis, or as the last one in memory.

    Of (length, 1) the length is neither, though both strides are 1.
    """
    for node in inputs:
        value = value_of_node(node)
        shape = getattr(value, "shape", ())
        strides = value.stride() if len(shape) > 1 and value.layout == torch.strided else ()
        strides = strides if strides and not _is_one(strides[-1]) else ()
        last = [size for size, stride in zip(shape, strides) if _is_one(stride)] + [*shape[-1:]] * (len(shape) > 1)
        widths = {str(size.node.expr) for size in last if isinstance(size, torch.SymInt)}
        yield from ((size, str(size.node.expr) in widths) for size in shape if isinstance(size, torch.SymInt))


def _grouped_heads(node: fx.Node) -> Sequence[int | torch.SymInt]:
    """The numbers of heads of queries and keys, where torch's attention lets several heads share keys."""
    if name_of(node) != "scaled_dot_product_attention":
        return ()
    shares = node.kwargs.get("enable_gqa", node.args[ENABLE_GQA] if len(node.args) > ENABLE_GQA else False)
    values = [value_of_node(n) for n in node.all_input_nodes[:2]]
    return [value.shape[-3] for value in values if value.dim() > 2] if shares is True else ()


def _shared_heads(nodes: Sequence[fx.Node], known: Mapping[str, torch.SymInt]) -> set[str]:
    """Texts of known sizes of axes along which a product's keys or values are repeated: of heads that share them.

    Not of a first axis: a batch whose sequences share keys is as long as it is. Example: k, of as many heads as
    keys have, `k.repeat_interleave(q.shape[1] // k.shape[1], 1)`, and then `q @ k.mT`.
    """
    repeated: dict[fx.Node, set[str]] = {}
    found: set[sympy.Symbol] = set()
    for node in nodes:
        kind, given = kind_of(node), {text for n in node.all_input_nodes for text in repeated.get(n, ())}
        if kind in ("view", "pointwise", "cast"):
            repeated[node] = given | _repeated_sizes(node) if has_trait(node, Trait.REPEATS) else given
        elif kind in ("contraction", "attention"):
            sizes = [size for size in batch_sizes(node) if isinstance(size, torch.SymInt)]
            given.update(_sizes_of_members(sizes))
            of_heads = (size.node.expr for size in sizes if not given.isdisjoint({str(size), *_factors(size)}))
            found.update(*(expression.free_symbols for expression in of_heads))
    return {text for text, size in known.items() if size.node.expr.free_symbols <= found}


def _sizes_of_members(sizes: Sequence[torch.SymInt]) -> Iterator[str]:
    """Texts of those of a product's batch sizes that are heads by groups, where the groups are another of them.

    Example: q.view(b, g, h // g, n, d) @ k[:, :, None].mT. Blocks of a length, s // w of them, lie beside no axis of w.
    """
    for size in sizes:
        if isinstance(size.node.expr, FloorDiv) and size.node.expr.args[1] in {other.node.expr for other in sizes}:
            yield str(size)


def _repeated_sizes(node: fx.Node) -> set[str]:
    """Texts of the sizes of axes along which a view has more elements than its source, but for the first axis."""
    sizes, source = reversed(value_of_node(node).shape[1:]), value_of_node(node.all_input_nodes[0])
    return {str(new) for new, old in zip_longest(sizes, reversed(source.shape)) if new is not None and new != old}


def _page_sizes(nodes: Sequence[fx.Node]) -> set[str]:
    """Texts of sizes of axes behind one that a lookup removes that are multiplied into a length: keys of a page.

    Example: slots, where pages [p, slots, heads, width] are read as table [b, n], and keys have the length n · slots.
    """
    shapes = [getattr(value_of_node(node), "shape", ()) for node in nodes]
    products = {factor for sizes in shapes for size in sizes for factor in _factors(size)}
    behind: set[str] = set()
    for table, positions in (x for x in map(table_and_positions, nodes) if x[0] is not None):
        behind.update(str(size) for size in value_of_node(table).shape[max(positions) + 1 :])
    return behind & products


def _factors(size: int | torch.SymInt) -> Iterator[str]:
    """The factors of a symbolic size that is a product."""
    if isinstance(size, torch.SymInt) and size.node.expr.is_Mul:
        yield from map(str, size.node.expr.args)


def _is_one(stride: int | torch.SymInt) -> bool:
    """Whether a stride is 1 for every value of the symbols: no guard is added."""
    return isinstance(stride, int) and stride == 1


def _lengths(region: Region, known: Mapping[str, torch.SymInt], other_axes: set[str]) -> set[str]:
    """Texts of sizes that are lengths: of `other_axes` and of scores, what is equal to them, and parts of them.

    So is a symbol of a length, but for those of widths: of s // 3 rows s is a length, of s // d heads it is none.
    """
    scores, sizes = _scores(region.nodes)
    widths = _widths(region.nodes, scores)
    of_widths = _symbols(region.nodes, widths)
    lengths = other_axes | ((sizes | (_symbols(region.nodes, sizes) - of_widths)) - widths)
    for equal in _equal_sizes(region.nodes):
        symbols = {str(symbol) for size in equal.values() for symbol in size.node.expr.free_symbols}
        if symbols & lengths:
            lengths.update(equal, symbols - of_widths)
    for text, size in known.items():
        if any(str(symbol) in lengths for symbol in size.node.expr.free_symbols - {size.node.expr}):
            lengths.add(text)
    return lengths.union(_sizes_of_lookups(region.nodes))


def _scores(nodes: Sequence[fx.Node]) -> tuple[set[fx.Node], set[str]]:
    """Scores and what they are made of; texts of the sizes of scores.

    Scores are what softmaxes are taken of, and weights that are a function of a product and are multiplied again.
    Examples: a[b, i, None] + c[b, None, j], whose operands have lengths as last axes; sigmoid(q @ k.mT).
    """
    weights = _weights(nodes)
    scores: set[fx.Node] = set()
    sizes: set[str] = set()
    for node in reversed(nodes):
        is_step = has_trait(node, Trait.SOFTMAX_STEP) and not has_trait(node, Trait.MAKES_DISTANCES)
        new = node.all_input_nodes[:1] if is_step else [node] if node in weights else []
        sizes.update(*map(_texts, new))
        scores.update(new)
        if node in scores and not is_step:
            scores.update(node.all_input_nodes)
        if kind_of(node) == "attention":
            sizes.update(*(_texts(operand)[:-1] for operand in node.all_input_nodes[:2]))
    return scores, sizes


def _widths(nodes: Sequence[fx.Node], scores: set[fx.Node]) -> set[str]:
    """Texts of sizes that products sum over to make scores, or that their last products have as columns."""
    found: set[str] = set()
    for node in nodes:
        if kind_of(node) == "contraction":
            found |= _summed_sizes(node) if node in scores else {*_texts(node)[-1:]}
        elif kind_of(node) == "attention":
            found.update(*(_texts(n)[-1:] for n in (node, *node.all_input_nodes[:1])))
    return found


def _weights(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Operands of products that are made of products by a function that is not linear.

    (q @ k.mT) @ v may be a product with k.mT @ v: which of its sizes are lengths, it does not say.
    """
    products: set[fx.Node] = set()  # and what is linear in them
    functions: set[fx.Node] = set()
    found: set[fx.Node] = set()
    for node in nodes:
        kind, inputs = kind_of(node), {*node.all_input_nodes}
        if kind == "contraction":
            found |= inputs & functions
            products.add(node)
        elif inputs & functions or (inputs & products and kind == "pointwise" and not has_trait(node, LINEAR)):
            functions.add(node)
        elif inputs & products:
            products.add(node)
    return found


def _summed_sizes(node: fx.Node) -> set[str]:
    """Texts of the sizes that a product sums over: they are more often in its operands than what is in its result.

    Where that tells none, as where all sizes are equal, it may be each size of the operands.
    """
    operands = node.all_input_nodes
    result, given = Counter(_texts(node)), Counter(text for operand in operands for text in _texts(operand))
    return {text for text, count in given.items() if count > len(operands) * result[text]} or {*given}


def _symbols(nodes: Sequence[fx.Node], texts: set[str]) -> set[str]:
    """The symbols of the sizes with these texts."""
    sizes = (size for node in nodes for size in getattr(value_of_node(node), "shape", ()) if str(size) in texts)
    return {str(symbol) for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}


def _texts(node: fx.Node) -> list[str]:
    """The texts of the sizes of a node's tensor."""
    return [str(size) for size in getattr(value_of_node(node), "shape", ())]


def _equal_sizes(nodes: Iterable[fx.Node]) -> Iterator[dict[str, torch.SymInt]]:
    """Sizes that a pointwise operation shows to be equal, such as a mask's own symbol and s // 2 of the scores."""
    for node in nodes:
        values = [value_of_node(n) for n in node.all_input_nodes] if kind_of(node) == "pointwise" else []
        shapes = [reversed(value.shape) for value in values if isinstance(value, torch.Tensor)]
        for sizes in zip_longest(*shapes):
            equal = {str(n.node.expr): n for n in sizes if isinstance(n, torch.SymInt) and not n.node.expr.is_Integer}
            if len(equal) > 1:
                yield equal


def _sizes_of_lookups(nodes: Iterable[fx.Node]) -> Iterator[str]:
    """Sizes that a lookup removes: the number of rows of its table."""
    for node in nodes:
        looked_up = kind_of(node) == "other" and not has_trait(node, Trait.NORM)
        if looked_up and isinstance(value_of_node(node), torch.Tensor):
            left = set(map(str, value_of_node(node).shape))
            shapes = [getattr(value_of_node(n), "shape", ()) for n in node.all_input_nodes]
            yield from (str(size) for shape in shapes for size in shape if str(size) not in left)


def guard_block_lengths(graph: fx.Graph) -> None:
    """Guards that c divides s wherever a shape has s // (s // c), which is how torch writes s cut into blocks of c."""
    seen = set()
    for node in graph.nodes:
        for size in getattr(value_of_node(node), "shape", ()):
            if not isinstance(size, torch.SymInt) or size.node.expr in seen:
                continue
            seen.add(size.node.expr)
            for quotient in size.node.expr.atoms(FloorDiv):
                a, b = quotient.args
                if isinstance(b, FloorDiv) and b.args[0] == a and b.args[1].is_Integer:
                    size.node.shape_env.evaluate_expr(sympy.Eq(Mod(*b.args), 0))


def _is_marked_dynamic(size: torch.SymInt) -> bool:
    """Whether one of the size's symbols is of an axis that torch._dynamo.mark_dynamic was called for.

    Torch marks an axis, too, whose size was another one in an earlier call; that only warns.
    """
    try:
        tracked = size.node.shape_env.tracked_fakes or ()
        strict = [
            axis.node.expr
            for entry in tracked
            if entry.symbolic_context is not None and isinstance(entry.fake, torch.Tensor)
            for axis, constraint in zip(entry.fake.shape, entry.symbolic_context.constraint_sizes, strict=True)
            if constraint is not None and not constraint.warn_only and isinstance(axis, torch.SymInt)
        ]
    except AttributeError:  # Another release of torch may keep this elsewhere; then nothing is fixed.
        return True
    mine = size.node.expr.free_symbols
    return any(mine & one.free_symbols for one in strict)
