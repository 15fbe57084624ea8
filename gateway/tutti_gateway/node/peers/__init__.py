"""The other gateways of the group: the transport to them, and their names."""
