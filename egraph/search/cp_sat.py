"""The one door to OR-Tools: its constraint solver, imported on first use because that takes longer than a search.

Every user sets one worker, a seed and a deterministic amount of work: the same problem has the same answer.
"""

from __future__ import annotations


class SolverMissing(ImportError):
    """OR-Tools is not installed; `pip install onepass[solvers]`."""


def cp_model():
    """The module ortools.sat.python.cp_model. Raises SolverMissing."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise SolverMissing("this needs OR-Tools: pip install onepass[solvers]") from error
    return cp_model


def deterministic(cp, work: float):
    """A solver of the module's whose answer depends on the problem and on `work` (about seconds) alone."""
    solver = cp.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = work
    return solver
