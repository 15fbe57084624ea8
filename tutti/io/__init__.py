"""I/O of producers: threads, connections, endpoints and requests."""
