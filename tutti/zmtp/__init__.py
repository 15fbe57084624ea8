"""ZMTP, the wire protocol of ZeroMQ, over plain sockets: the thread that owns a connection moves its bytes."""
