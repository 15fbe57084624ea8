"""Delivery: sessions, windows and epochs of a producer, without I/O (sans-I/O)."""
