"""Numbers that several stages of planning share: how much a tile may hold, how few rows are worth a matrix product.

Example: a dim of 128 elements lies in a tile whole, since MAX_RESIDENT_ELEMENTS is 256; a dim of 1024 becomes a loop.
"""

from __future__ import annotations

# The most elements of one dim that a tile holds whole, and of all such dims of a result together.
MAX_RESIDENT_ELEMENTS = 256
# The most elements that one row of a tile holds of several dims, where programs would otherwise compute the same
# products again. Example: dims of 8 and of 256 elements stay in one tile together.
MAX_RESIDENT_ELEMENTS_OF_A_ROW = 2048
# The most entries of a learned table that positions in a tensor read, if the kernel has its gradient: a tile compares
# each pair with all of them. Example: the distances in a graph; a longer table's gradient is left to torch.
MAX_ENTRIES_OF_A_TABLE = 128
# The fewest rows of a tile of a matrix product. Example: for a kernel with 4 rows a further dim is looked for as rows.
MIN_ROWS_OF_A_PRODUCT = 16
# The most bytes that a plan may store between its kernels, unless the program moves more itself. An L2 holds about
# as much.
MAX_STORED_BYTES = 64 << 20
# The score that stands for a finite mask in a kernel. It is a power of two, so a product with a factor does not round
# it, and all masked scores of a row stay equal.
HIDDEN_SCORE = -(2.0**100)
# Columns of one operand of a matrix product, and of one accumulator, in a Hopper kernel.
MAX_OPERAND_WIDTH = 512
# The keys of a piece of an invariant plan's loops. A short piece costs more merging, a long one shares out fewer
# programs where there are few rows.
KEYS_OF_A_PIECE = 1024
# The widest accumulator whose totals fit into shared memory beside the tiles of a Hopper kernel.
MAX_COLUMNS_OF_TOTALS = 128
