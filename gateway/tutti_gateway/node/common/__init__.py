"""Parts that several folders of the node share: clock, counters, mailbox, interfaces, logging and memory."""
