"""Experiments: runs as TOML files, a JSON result for each run and seed, and tables and plots of the results."""
