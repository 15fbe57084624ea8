"""Files of a data directory, and access to them."""
