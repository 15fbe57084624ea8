"""ZMTP, the wire protocol of ZeroMQ, over plain sockets: the owner of a connection itself reads and writes the bytes."""
