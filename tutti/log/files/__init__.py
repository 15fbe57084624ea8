"""The files of a data directory: their names and layout, and the access to them."""
