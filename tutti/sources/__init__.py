"""Sources of committed records: gateways, data directories, archives, and combinations."""
