"""`tutti demo`: a year of departures from New York, through a gateway and to a Spark job that are both killed, and the checks."""
