"""The read side of the data source `tutti`: planning, batch and streaming readers."""
