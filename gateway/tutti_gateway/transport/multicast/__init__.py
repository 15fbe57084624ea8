"""Multicast."""
