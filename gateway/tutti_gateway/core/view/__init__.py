"""State of the current view, the peers and the rosters, shared by all layers."""
