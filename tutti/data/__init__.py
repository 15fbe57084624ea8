"""Data formats: frames, batches, messages of the client port, and the state of a log (NOTES.md).

This package contains only values and functions without side effects. No function does I/O.
"""
