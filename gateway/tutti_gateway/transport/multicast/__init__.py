"""UDP multicast for messages to all members."""
