"""Guards as ranges of a loop, as classes of tiles, as bits."""
