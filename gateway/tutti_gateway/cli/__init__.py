"""The commands of `tutti`. Each command has its own module, which is imported only when the command runs."""
