"""Parts of the log writer: segments, vote marks, index rows, recovery, truncation and snapshot installation."""
