"""The write side of the data source `tutti`: tasks stage records, and the driver commits the staged records."""
