"""Commands that check configurations, and write files to start from."""
