"""Status documents, the status socket, the trace log, and the supervisor of the reads process."""
