"""The logs that the reads process serves: ranges, frontier waits, named readers, queries and peers."""
