"""Between gateways: messages of the group on sockets."""
