"""docs/explanation/performance.md and performance-targets.md: measured figures in the text of two templates."""
