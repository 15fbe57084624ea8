"""Access control: tokens, rights, and the files that contain keys and secrets."""
