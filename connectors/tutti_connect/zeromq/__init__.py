"""ZeroMQ's messages into the log, and the log's records out to its subscribers. What can be lost, and where: NOTES.md."""
