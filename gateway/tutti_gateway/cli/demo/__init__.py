"""`tutti demo`: sends flight departures through a group of gateways to a Spark job, kills both, and checks the results."""
