"""Messages between gateways: TCP mesh and UDP multicast."""
