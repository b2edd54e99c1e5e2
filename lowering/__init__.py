"""From a term to a plan of loops, tiles and accumulators, and the executors that run a plan."""
