"""The write side of the data source `tutti`: tasks stage records, the driver commits them."""
