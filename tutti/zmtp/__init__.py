"""ZMTP by plain sockets: what ZeroMQ says on the wire, said and read by the thread that owns the connection."""
