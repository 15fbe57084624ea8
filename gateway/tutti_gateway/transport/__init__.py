"""Messages between gateways: TCP mesh, UDP multicast, and a transport in memory for tests."""
