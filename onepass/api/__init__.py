"""The backend, the Inductor pass, and `explain`."""
