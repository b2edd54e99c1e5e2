"""Loads the constraint solver of OR-Tools, CP-SAT; the only module that imports it.

It is imported on first use, because that takes longer than a search. A solver made here has one worker, a fixed seed
and a deterministic amount of work, so the same problem has the same answer. Example: `deterministic(cp_model(), 4.0)`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


class SolverMissing(ImportError):
    """OR-Tools is not installed; `pip install onepass[solvers]`."""


def cp_model() -> ModuleType:
    """The module ortools.sat.python.cp_model. Raises SolverMissing."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise SolverMissing("this needs OR-Tools: pip install onepass[solvers]") from error
    return cp_model


def deterministic(cp: ModuleType, work: float) -> Any:
    """A CpSolver whose answer depends only on the problem and on `work`, in deterministic units of about a second."""
    solver = cp.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = work
    return solver
