"""Data formats: frames, batches, messages of the client port, and the state of a log (NOTES.md).

This package has only pure functions and values. No function does I/O.
"""
