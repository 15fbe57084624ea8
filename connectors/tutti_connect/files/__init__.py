"""Files connector: copies the rows of files in a directory to the log, each row once.

NOTES.md has theory of operation and failures.
"""
