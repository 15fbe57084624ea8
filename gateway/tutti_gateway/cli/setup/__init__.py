"""Commands that check configuration files, and that write configuration files and example programs to start from."""
