"""Derivatives of a region: a forward with saved values, plans of gradients and of tangents, from the same terms."""
