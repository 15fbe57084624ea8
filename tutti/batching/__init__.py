"""Batching: accumulator, encoder and receipts of a producer."""
