"""Numbers that several stages of planning share: how much a tile may hold, how few rows are worth a matrix product.

Each says its unit. Example: a dim of up to HELD elements lies in a tile whole, a longer one becomes a loop.
"""

from __future__ import annotations

HIDDEN = -(2.0**100)  # what executors put there: times a factor it is not rounded, so that all of a row stay alike


HELD = 256  # the most elements of one dim, and of all held output dims together, that a tile holds whole


TOGETHER = 2048  # those that a row of a tile may hold where, on the grid, products would be done again


FEW = 16  # rows that a tile of a matrix product has at least
