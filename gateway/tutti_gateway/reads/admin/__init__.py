"""The admin port: health, metrics, status, pages of records, and the console."""
