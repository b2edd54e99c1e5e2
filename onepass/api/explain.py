"""`explain`: reports what onepass would do with a function, without replacing anything.

Dynamo captures the function as for a compiled call. Each graph is analysed and runs as written. Example:
`print(explain(attention, q, k, v))`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..errors import InputError, OptionError
from ..garbage import rare_collections
from ..lowering.stage_times import added
from ..report.records import Report


@rare_collections()
def explain(
    function: Callable,
    *inputs: object,
    rules: object = (),
    options: Mapping[str, object] | None = None,
    gradients: bool = False,
    tangents: bool = False,
    **keywords: object,
) -> Report:
    """Reports what onepass would do with the graphs of function(*inputs, **keywords). The function runs once.

    rules: the user's rules, as in `options={"rules": rules}`. options: those of the backend, also where the function is
    a compiled one: the report says which. gradients, tangents: each region's report has a record of these in full. If
    no input needs a gradient, all floating ones are taken to.
    Raises OptionError for unknown options, NotFused where the option require does not hold, InputError for inputs that
    the function does not accept, and the errors of the function.

    >>> import onepass, torch
    >>> def attend(q, k, v):
    ...     return torch.softmax(q @ k.mT / 8, -1) @ v
    >>> q, k, v = (torch.randn(2, 4, 32, 64) for _ in range(3))
    >>> report = onepass.explain(attend, q, k, v)
    >>> print(str(report).splitlines()[0])
    Is it fused?          Yes: 1 region
    """
    import torch
    from torch._dynamo import config

    from ..compiler.options import Options
    from ..report.graph_breaks import breaks_of, counted
    from ..report.requirements import hold
    from .backend import Recorder

    flags = {"gradients": gradients, "tangents": tangents}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise OptionError(f"{name} is True or False, not {flag!r}")
    asked = frozenset(name for name, wanted in flags.items() if wanted)
    recorder = Recorder(Options.read(_both(rules, options)), asked)
    function = getattr(function, "_orig_mod", getattr(function, "_torchdynamo_orig_callable", function))
    refuse_call(function, inputs, keywords)
    if gradients:
        inputs, keywords = _wanting_gradients(inputs, keywords)
    recorded = torch.set_grad_enabled(gradients or torch.is_grad_enabled())
    limits = {n: 1 << 20 for n in ("recompile_limit", "accumulated_recompile_limit") if hasattr(config, n)}
    with config.patch(limits), counted() as reasons, recorded:
        torch.compile(function, backend=recorder)(*inputs, **keywords)
    report = merged(recorder.reports)
    breaks = breaks_of(function, report.graphs, report.breaks, reasons)
    report = replace(report, breaks=breaks, options=recorder.options.said)
    hold(report, recorder.options.required)
    return report


def _wanting_gradients(inputs: tuple, keywords: dict[str, object]) -> tuple[tuple, dict[str, object]]:
    """The same inputs; if none of their tensors requires a gradient, copies of them of which all floating ones do."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    tensors = [leaf for leaf in tree_leaves((inputs, keywords)) if isinstance(leaf, torch.Tensor)]
    if any(tensor.requires_grad for tensor in tensors):
        return inputs, keywords

    def leaf_of(x: object) -> object:
        return x.detach().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    return tree_map(leaf_of, (inputs, keywords))


def _both(rules, options):
    """The options, with the rules added to them. Raises OptionError if rules are given twice."""
    if options is None:
        return {"rules": rules}
    if not isinstance(options, Mapping) or (isinstance(rules, tuple) and not rules):
        return options
    if "rules" in options:
        raise OptionError("rules are given twice: as rules=..., and among the options")
    return {**options, "rules": rules}


def refuse_call(function: object, inputs: Sequence, keywords: Mapping[str, object]) -> None:
    """Raises InputError for a value that is no function, and for inputs that its signature does not accept."""
    import torch

    from ..compiler.options import Options

    if isinstance(function, type):
        made = f"{function.__name__}(...)"
        raise InputError(f"{function.__name__} is a class: explain({made}, *inputs) explains a module of it")
    if not callable(function):
        kind = type(function).__name__
        raise InputError(f"explain(function, *inputs) takes a function or a module first, and this is of type {kind}")
    _refuse_arrays(inputs, keywords)
    called = function.forward if isinstance(function, torch.nn.Module) else function
    name = getattr(function, "__name__", type(function).__name__)
    if getattr(function, "_forward_pre_hooks", None):  # hooks may change the inputs of forward
        return
    try:
        signature = inspect.signature(called, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*inputs, **keywords)
    except TypeError as error:
        meant = [word for word in keywords if word in Options.__dataclass_fields__ and word not in signature.parameters]
        many = f"{len(inputs)} input{'' if len(inputs) == 1 else 's'}"
        message = f"explain calls {name}({', '.join(signature.parameters)}) with {many}"
        message += f" and {', '.join(keywords)}: {error}" if keywords else f": {error}"
        if meant:
            message += f"; of onepass's options write explain(..., options={{{meant[0]!r}: {keywords[meant[0]]!r}}})"
        elif len(inputs) == 1 and isinstance(inputs[0], tuple | list):
            message += f"; a {type(inputs[0]).__name__} of inputs is given as explain({name}, *inputs)"
        raise InputError(message) from error


def _refuse_arrays(inputs: Sequence, keywords: Mapping[str, object]) -> None:
    """Raises InputError for an input that is a NumPy array."""
    for place, value in (*enumerate(inputs), *keywords.items()):
        if type(value).__module__ == "numpy" and hasattr(value, "__array_interface__"):
            name = f"input {place}" if isinstance(place, int) else place
            raise InputError(f"{name} is a NumPy array, and explain takes tensors: torch.from_numpy(...) makes one")


def merged(graphs: Iterable[Report]) -> Report:
    """The reports of several graphs as one."""
    graphs = tuple(graphs)
    regions = tuple(region for report in graphs for region in report.regions)
    refusals = tuple(dict.fromkeys(r for report in graphs for r in report.refusals))
    failures = tuple(dict.fromkeys(f for report in graphs for f in report.failures))
    breaks = tuple(dict.fromkeys(b for report in graphs for b in report.breaks))
    given = tuple(dict.fromkeys(name for report in graphs for name in report.given))
    seconds = added(report.seconds for report in graphs)
    return Report(regions, refusals, failures, len(graphs), breaks, given=given, seconds=seconds)
