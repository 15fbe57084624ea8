"""Groups of gateway states, by their meaning for clients."""

#: States in which the frontier does not advance and nothing is ordered: a different gateway may be able to serve the client.
CUT_OFF = frozenset({"minority", "halted"})
#: States in which unordered records should go to another gateway's lane; includes the state of a gateway that is about to stop.
NO_NEW_UNORDERED = CUT_OFF | {"leaving"}
