"""Software pipelines and warp assignment of a plan's loops: problem, solver, checker, prediction."""
