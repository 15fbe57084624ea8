"""How cost grows: with members, sizes, producers, topics, readers, the log and time."""
