"""Readers of a log. Any number of processes can read the files of a log at the same time."""
