"""States that a gateway says to be in, by what they mean to who asks it."""

#: Its frontier stands still until they are over, and it orders nothing: another gateway may do what it cannot.
CUT_OFF = frozenset({"minority", "halted"})
#: The same, and that of one about to stop: another gateway's lane is better for what is unordered.
SHUT = CUT_OFF | {"leaving"}
