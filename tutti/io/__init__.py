"""I/O of the client: threads and connections of producers, endpoints, port probes, and requests of tools."""
