"""Experiments: runs as TOML, one result as JSON for each run and seed, and tables and plots out of the results."""
