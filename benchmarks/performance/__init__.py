"""docs/explanation/performance.md: what was measured, put into what was written."""
