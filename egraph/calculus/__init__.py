"""Derivatives of terms: a row for each operation, reverse mode, transposed loads, what a forward saves."""
