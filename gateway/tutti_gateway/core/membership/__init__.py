"""Who is there: peers, heartbeats, suspicion, joins and leaves, learners, the roster (design, section 4, layer 2)."""
