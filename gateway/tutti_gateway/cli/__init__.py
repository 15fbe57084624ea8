"""The commands of `tutti`. Each lives in a module of its own that is imported when it runs."""
