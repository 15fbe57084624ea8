"""File formats: rows of files, converted to record batches."""
