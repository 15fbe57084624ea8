"""The group stack without I/O: events in, actions out, deterministic (design, section 4)."""
