"""Files connector: copies the rows of files in a directory to the log, each row once.

NOTES.md describes the theory of operation and the effects of failures.
"""
