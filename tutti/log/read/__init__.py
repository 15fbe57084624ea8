"""Reading of a log from its files, by any number of processes."""
