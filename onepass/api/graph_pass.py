"""onepass as a pass of Inductor, for `joint_custom_pre_pass` (inference) and `pre_grad_custom_pass`.

Its uuid covers versions, laws, rules and options, so that Inductor's caches stay on. A cached graph carries the data of
its operations, so the pass need not run again. Example: `config.pre_grad_custom_pass = GraphPass()`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from .. import messages
from ..compiler import disk_cache
from ..compiler.options import OptionError, Options
from ..egraph.rewrite.serialization import digest
from ..errors import InputError
from ..report.graph_breaks import with_break
from ..report.publish import publish
from ..report.records import Refused, Report
from ..runtime import operator as _operator  # noqa: F401  (registers the operation, for graphs that come out of a cache)
from .wrappers import AOT, left_as_written, name_for_packages


class GraphPass(CustomGraphPass):
    """A pass that fuses regions. `then`: another pass, which runs afterwards on the same graph.

    aot: where packages of AOTInductor must run. "anywhere": their regions stay as written. "python": they are fused,
    and need a process that has imported onepass.operator.
    Raises OptionError, RuleRefuted or RuleUnproved when it is made, before any model is compiled.

    >>> import onepass, torch
    >>> def attend(q, k, v):
    ...     return torch.softmax(q @ k.mT / 8, -1) @ v
    >>> q, k, v = (torch.randn(2, 4, 32, 64) for _ in range(3))
    >>> fast = torch.compile(attend, options={"pre_grad_custom_pass": onepass.GraphPass(strict=True)})
    >>> torch.allclose(fast(q, k, v), attend(q, k, v), atol=1e-5)
    True
    """

    def __init__(
        self,
        rules=(),
        *,
        strict=False,
        executor="auto",
        then: Callable | None = None,
        fuse_loads="auto",
        aot=AOT[0],
        deterministic=False,
        **unknown,
    ):
        given = {"rules": rules, "strict": strict, "executor": executor, "fuse_loads": fuse_loads}
        self.options = Options.read({**given, "deterministic": deterministic, **unknown})
        if then is not None and not callable(then):
            raise OptionError(f"then is a pass, not {then!r}")
        if aot not in AOT:
            raise OptionError(f"aot is one of {', '.join(AOT)}, not {aot!r}")
        self.then, self.aot = then, aot

    def __call__(self, graph: fx.Graph) -> None:
        from ..graph_passes.pipeline import Rewriting, Stage, run_stage

        if not isinstance(graph, fx.Graph):
            slot = 'torch.compile(f, options={"pre_grad_custom_pass": onepass.GraphPass()})'
            raise InputError(f"a pass runs on the graph of a compilation, an fx.Graph, not on {graph!r:.80}: {slot}")
        publish(with_break(self._rewrite(graph), graph.owning_module), self.options.required)
        run_stage(Stage.INDUCTOR, graph, Rewriting(self.options))
        if self.then is not None:
            self.then(graph)

    def _rewrite(self, graph: fx.Graph) -> Report:
        from ..graph_passes.pipeline import rewrite
        from ..runtime.compile_ahead import compile_ahead

        if any(n.op == "placeholder" and "tangents" in n.name for n in graph.nodes):
            return Report(refusals=(Refused.of(messages.JOINT_GRAPH),))
        if (report := left_as_written({}, self.aot)) is not None:
            return report
        report = rewrite(graph, self.options)
        name_for_packages(graph)
        if self.aot == AOT[0] and graph.owning_module is not None:  # else it may be for a package, which runs elsewhere
            compile_ahead(graph.owning_module)
        return report

    def uuid(self) -> str | None:
        """The key for Inductor's caches; None, which switches them off, if `then` or a rule of code has no key."""
        after = None
        if self.then is not None:
            own = getattr(self.then, "uuid", None)
            after = own() if own is not None else None
            if after is None:
                return None
        try:
            return digest(["onepass.GraphPass", disk_cache.versions(), self.options.digest(), self.aot, str(after)])
        except OptionError:
            return None

    def __reduce__(self):
        return _again, (self.options, self.then, self.aot)


def _again(options: Options, then, aot: str) -> GraphPass:
    made = GraphPass()
    made.options, made.then, made.aot = options, then, aot
    return made
