"""ATen calls to terms: one table, one handler per operation."""
