"""Commands for logs and archives."""
