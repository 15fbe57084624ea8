"""Tools for an operator with a data directory: verify, list, digest and repair it, its gateway up or down."""
