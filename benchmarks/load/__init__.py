"""A load generator in C, which costs so little that a benchmark measures the servers and not their client."""
