"""Delivery: sessions, windows and epochs of a producer, sans-I/O."""
