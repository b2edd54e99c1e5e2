"""Ways into other libraries, each a module that is imported on demand."""
