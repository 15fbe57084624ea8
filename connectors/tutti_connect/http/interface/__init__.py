"""HTTP interface: operations, request parsing, errors, description."""
