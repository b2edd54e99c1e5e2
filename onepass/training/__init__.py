"""Training: a region's forward with the values it saves, and the plan of its gradients, derived from the same terms."""
