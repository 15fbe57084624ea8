"""What a gateway, its clients and Spark reach on this machine, with the machine's own limits beside it in the same run."""
