"""Disk."""
