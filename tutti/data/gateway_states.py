"""Sets of gateway states for which a client acts in the same way."""

#: In these states, the gateway orders no records and its frontier does not advance, so a client should try another gateway.
CUT_OFF = frozenset({"minority", "halted"})
#: In these states, unordered records should go to another gateway's lane, also because a leaving gateway is about to stop.
NO_NEW_UNORDERED = CUT_OFF | {"leaving"}
