"""Benchmarks against other tools: `python -m benchmarks NAME`. One file per comparison, one JSON line per result."""
