"""Tools for an operator with a data directory: verify, inspect, digest and repair."""
