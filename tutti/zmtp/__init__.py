"""ZMTP by plain sockets, encrypted or not: what ZeroMQ says on the wire, said and read by the thread that owns the connection."""
