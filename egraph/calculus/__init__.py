"""Derivatives of terms: a row for each operation, reverse and forward mode, transposed loads, what a forward saves."""
