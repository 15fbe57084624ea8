"""`tutti doctor`: checks that gateways, clients and Spark can run on this machine, and gives a remedy for each problem."""
