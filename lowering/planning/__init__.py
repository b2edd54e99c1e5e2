"""Terms to a plan, as a list of passes."""
