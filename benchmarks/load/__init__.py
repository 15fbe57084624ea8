"""A load generator in C. It uses so little CPU time that a benchmark measures the servers instead of their client."""
