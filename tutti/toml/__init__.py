"""Loading of TOML configurations, with the line of each mistake."""
