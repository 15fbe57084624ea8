"""Generator of the reference pages."""
