"""Access control: tokens, rights, and the files that hold keys and secrets."""
