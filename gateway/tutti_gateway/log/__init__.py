"""The log on a gateway's disk: writing, recovery, background maintenance, lanes and tools."""
