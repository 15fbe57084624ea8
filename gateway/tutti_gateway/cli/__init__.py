"""The commands of `tutti`. Each is a module of its own, imported when the command runs."""
