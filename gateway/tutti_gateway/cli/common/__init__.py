"""Options, output, waiting and signal handling that all commands share."""
