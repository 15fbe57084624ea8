"""Groups of gateway states, by their meaning for clients."""

#: The frontier does not move and nothing is ordered: another gateway may serve the client.
CUT_OFF = frozenset({"minority", "halted"})
#: States in which unordered records should go to another gateway's lane; includes a gateway about to stop.
NO_NEW_UNORDERED = CUT_OFF | {"leaving"}
